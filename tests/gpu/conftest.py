"""Tests that need a device: skipped where there is none, unless --require-gpu says that there has to be one."""

from __future__ import annotations

import pytest

from ohdiff.chunking.cuda.device import CudaDevice
from ohdiff.errors import DeviceError


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--require-gpu", action="store_true", help="Fail, rather than skip, without a CUDA device.")


@pytest.fixture(scope="session")
def device(request: pytest.FixtureRequest) -> CudaDevice:
    """The first device."""
    try:
        return CudaDevice()
    except DeviceError as error:
        if request.config.getoption("--require-gpu", default=False):
            pytest.fail(f"a device is required: {error.message}")
        pytest.skip(error.message)
