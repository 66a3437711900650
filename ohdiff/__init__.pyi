from .operations.tensors import TensorsResult as TensorsResult
from .operations.tensors import snapshot_tensors as snapshot_tensors
from .operations.tensors_restore import RestoredTensor as RestoredTensor
from .operations.tensors_restore import restore_tensors as restore_tensors

__version__: str
