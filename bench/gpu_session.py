"""One session on a machine with a CUDA device: build, test, check, measure, and write down what came of it.

Every rate of a kernel stands beside the copy rate of the same run, and every end-to-end figure beside the CPU's. Ends
within its budget of minutes: what there is no time for is listed as not measured. Without a device it says why, and
ends with 40.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
EXIT_DEVICE = 40
# What a driver shows of itself, on Linux and in its Windows subsystem.
DRIVERS = (Path("/proc/driver/nvidia/version"), Path("/dev/dxg"))
KERNEL_DATA_BYTES = 512 << 20
FILE_DATA_BYTES = 2 << 30
TENSOR_BYTES = 512 << 20
TENSORS_BYTES = 32 << 30
NOISE_BYTES = 64 << 20
SAMPLE_BLOCKS = 64
ROUNDS = 5
LAUNCHES = 10


@dataclass
class Session:
    """What came of it.

    Attributes
    ----------
    steps : (step, outcome) in order.
    figures : (what, value, unit, remark).
    """

    deadline: float
    steps: list[tuple[str, str]] = field(default_factory=list)
    figures: list[tuple[str, float, str, str]] = field(default_factory=list)
    has_failed: bool = False

    @property
    def seconds_left(self) -> float:
        """Until the budget is spent."""
        return self.deadline - time.monotonic()

    def step(self, name: str, seconds_wanted: float, work: Callable[[], str]) -> None:
        """Do something, if there is time for it; what fails is written down, and the session goes on."""
        if self.seconds_left < seconds_wanted:
            self.steps.append((name, f"not done: {seconds_wanted:.0f} s wanted, {self.seconds_left:.0f} s left"))
            return
        begun = time.monotonic()
        try:
            outcome = work()
        except Exception as error:  # noqa: BLE001 - one step that fails must not lose the results of the others
            self.has_failed = True
            outcome = f"FAILED: {type(error).__name__}: {error}"
        self.steps.append((name, f"{outcome} ({time.monotonic() - begun:.1f} s)"))
        print(f"{name}: {self.steps[-1][1]}", flush=True)

    def figure(self, what: str, value: float, unit: str, remark: str = "") -> None:
        """Write down a measured figure."""
        self.figures.append((what, value, unit, remark))
        print(f"  {what}: {value:.3g} {unit} {remark}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--output", type=Path, default=ROOT / "bench" / "results" / "gpu", metavar="FOLDER")
    parser.add_argument("--minutes", type=float, default=8.0, help="the budget; default: 8")
    parser.add_argument("--work", type=Path, help="folder for files that are snapshotted; default: a temporary one")
    parser.add_argument("--no-build", action="store_true", help="ohdiff is installed already")
    arguments = parser.parse_args()
    session = Session(time.monotonic() + 60 * arguments.minutes - 20)
    if not any(map(Path.exists, DRIVERS)):
        # Before a build of minutes that could not be used.
        return refuse("there is no NVIDIA driver on this machine", "run this where nvidia-smi shows a device")
    if not arguments.no_build:
        session.step("build", 60, build)
    from ohdiff.errors import DeviceError

    try:
        from ohdiff.chunking.cuda.device import CudaDevice

        described = CudaDevice().description
    except DeviceError as error:
        return refuse(error.message, error.hint)
    print(f"{described.name}, {described.architecture}, {described.memory_total / 1e9:.0f} GB", flush=True)
    with tempfile.TemporaryDirectory(prefix="ohdiff-gpu-", dir=arguments.work) as folder:
        measure(session, Path(folder))
    write_results(session, asdict(described), arguments.output)
    return 1 if session.has_failed else 0


def refuse(why: str, hint: str) -> int:
    """Say that there is no device; the exit code."""
    print(f"no GPU session: {why}\n  {hint}\n  nothing was measured, and nothing was written", file=sys.stderr)
    return EXIT_DEVICE


def measure(session: Session, folder: Path) -> None:
    """Every step, the most telling ones first."""
    session.step("self-check", 30, self_check)
    session.step("kernels against the copy rate", 60, lambda: kernel_rates(session))
    session.step("from memory", 40, lambda: memory_rates(session))
    session.step("unchanged tensors on the device", 60, lambda: tensor_snapshots(session))
    session.step("files in the page cache", 90, lambda: file_snapshots(session, folder))
    session.step("compression on the device", 40, lambda: compression_rates(session))
    session.step("compressed snapshots", 60, lambda: compressed_snapshots(session, folder))
    session.step("tensors encoded on the device", 40, lambda: encoded_tensors(session))
    session.step("files past the CPU", 40, lambda: direct_snapshots(session, folder))
    session.step("beside a job on the device", 60, lambda: beside_a_job(session))
    session.step("tests on the device", 30, lambda: run_tests(session.seconds_left))


def build() -> str:
    done = subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", str(ROOT)], check=False)
    if done.returncode:
        raise RuntimeError(f"pip ended with {done.returncode}")
    return "installed"


def run_tests(seconds: float) -> str:
    command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "gpu", "--require-gpu"]
    done = subprocess.run(
        command, cwd=ROOT / "tests", capture_output=True, text=True, check=False, timeout=max(10, seconds)
    )
    lines = done.stdout.strip().splitlines()
    if done.returncode:
        raise RuntimeError("; ".join(line for line in lines if line.startswith(("FAILED", "ERROR")))[-2000:])
    return lines[-1]


def new_engine() -> Any:
    from ohdiff.chunking.cuda.engine import CudaEngine
    from ohdiff.chunking.rule import ChunkingRule

    return CudaEngine(ChunkingRule.from_key(bytes(range(32)), avg_size=32 << 10), bytes(32))


def self_check() -> str:
    from ohdiff.chunking.cuda.self_check import first_disagreement

    engine = new_engine()
    disagreement = first_disagreement(engine, engine.cpu)
    if disagreement is not None or not engine.is_on_device:
        raise RuntimeError(disagreement or engine.notes[-1])
    return "cuts, ids and features are the CPU's"


def kernel_rates(session: Session) -> str:
    """Bytes of data a second for each kernel, on random data that lies on the device."""
    from ohdiff.chunking.cuda.lanes import Lane, LaneSize

    engine = new_engine()
    device, size = engine.device, KERNEL_DATA_BYTES
    with device.bound():
        pool = device.new_pool(6 * size)
        lane = Lane(device, pool, LaneSize(size, 0, engine.rule.min_size, has_data=False))
        data, other = pool.malloc(size), pool.malloc(size)
        fill_with_noise(device, int(data.ptr), size)
        copied = timed(lane, lambda: device.copy_within(int(other.ptr), int(data.ptr), size, lane.stream))
        copy_rate = size / copied
        session.figure("copy on the device", copy_rate / 1e9, "GB/s", "bytes read; as many are written")
        for name, launch in kernel_launches(engine, lane, int(data.ptr), size):
            rate = size / timed(lane, launch)
            session.figure(name, rate / 1e9, "GB/s", f"{rate / copy_rate:.2f} of the copy rate")
    return f"on {size >> 20} MiB, the best of {ROUNDS} rounds of {LAUNCHES} launches"


def kernel_launches(engine: Any, lane: Any, data: int, size: int) -> Iterator[tuple[str, Callable[[], None]]]:
    """In the order of a batch: each finds what those before have left in the buffers."""
    from ohdiff.chunking.cuda.kernels import SLOTS, tiles_of

    kernels, at, stream, rule = engine._kernels, lane.scratch, lane.stream, engine.rule
    terms, key, loose = engine._constants.terms, engine._constants.key, rule.threshold_loose
    tiles = tiles_of(size)
    listing = (at["slots"], at["counts"])
    upload(engine.device, array("I", [size]), at["segment_ends"])
    yield "candidates", lambda: kernels.find_candidates(stream, data, size, terms, loose, *listing)
    places = (at["first"], at["unlisted"], at["unlisted_count"])
    yield "place tiles", lambda: kernels.place_tiles(stream, at["counts"], tiles, tiles * SLOTS, *places)
    listed = (at["first"], at["list"])
    yield "list candidates", lambda: kernels.list_candidates(stream, data, size, terms, loose, *listing, *listed)
    sizes = (rule.min_size, rule.avg_size, rule.max_size, rule.threshold_strict, loose)
    tables = (*listed, at["unlisted"], at["unlisted_count"], at["found"], at["cut_counts"])
    arguments = (data, terms, at["segment_ends"], 1, 0, *sizes, *tables)
    yield "select cuts, one file", lambda: kernels.select_cuts(stream, 1, arguments)
    yield "place cuts", lambda: kernels.place_cuts(stream, at["cut_counts"], 1, at["cut_first"])
    gathered = (at["segment_ends"], 1, rule.min_size, at["found"], at["cut_first"], at["bounds"])
    yield "gather cuts", lambda: kernels.gather_cuts(stream, *gathered)
    count, chunks_max = at["cut_first"] + 4, size // rule.min_size + 1
    hashing = (at["bounds"], count, chunks_max, at["leaf_first"], key, at["nodes"], at["ids"])
    yield "BLAKE3, leaves and trees", lambda: kernels.hash_chunks(stream, data, size, *hashing)
    chunks = size // rule.avg_size
    upload(engine.device, array("I", range(0, size + 1, rule.avg_size)), at["bounds"])
    yield "features", lambda: kernels.find_features(stream, data, size, terms, at["bounds"], chunks, at["features"])


def timed(lane: Any, launch: Callable[[], None]) -> float:
    """Seconds of one launch: of the best round, after one that warms up."""
    launch()
    lane.wait()
    durations = []
    for _ in range(ROUNDS):
        begun = time.perf_counter()
        for _ in range(LAUNCHES):
            launch()
        lane.wait()
        durations.append((time.perf_counter() - begun) / LAUNCHES)
    return min(durations)


def fill_with_noise(device: Any, address: int, size: int) -> None:
    from blake3 import blake3

    from ohdiff.chunking.cuda.host_memory import address_of

    part = min(size, NOISE_BYTES)
    stream = device.new_stream()
    for start in range(0, size, part):
        with address_of(blake3(b"%d" % start).digest(length=part)) as (source, count):
            device.copy_in(address + start, source, count, stream)
            stream.synchronize()


def upload(device: Any, numbers: array[int], target: int) -> None:
    from ohdiff.chunking.cuda.host_memory import address_of

    stream = device.new_stream()
    with address_of(numbers) as (source, size):
        device.copy_in(target, source, size, stream)
        stream.synchronize()


def memory_rates(session: Session) -> str:
    """Cut and hashed, end to end, with every copy counted; the same profile that `ohdiff calibrate` stores."""
    import os

    from ohdiff.operations.calibration import measure_profile

    profile = measure_profile(new_engine(), len(os.sched_getaffinity(0)))
    session.figure("copied up from pinned memory", profile.copy_rate / 1e9, "GB/s")
    remark = f"{profile.pinned_rate / profile.copy_rate:.2f} of the copy rate"
    session.figure("cut and hashed from pinned memory", profile.pinned_rate / 1e9, "GB/s", remark)
    session.figure("cut and hashed from ordinary memory, one thread", profile.pageable_rate / 1e9, "GB/s")
    session.figure("cut and hashed on the device", profile.resident_rate / 1e9, "GB/s")
    session.figure("CPU engine, one thread", profile.cpu_rate / 1e9, "GB/s")
    session.figure(f"CPU engine, {profile.processors} threads", profile.cpu_rate_all / 1e9, "GB/s")
    return "done"


def new_repository() -> Any:
    from ohdiff.cli.engines import default_chunker
    from ohdiff.repository.keys import KeyDescription, generate_key_file
    from ohdiff.repository.repository import create_repository
    from ohdiff.storage import open_storage

    return create_repository(
        open_storage("memory:gpu-session", create=True),
        encryption="aes-256-gcm",
        unlock=generate_key_file(),
        chunker=default_chunker(),
        description=KeyDescription("bench", "bench", 1),
    )


def tensor_snapshots(session: Session) -> str:
    """Tensors that are views of one run of memory: few bytes to store at first, all of them to be hashed."""
    from ohdiff.operations.tensors import snapshot_tensors

    engine = new_engine()
    cupy: Any = engine.device.cupy
    whole = cupy.empty(TENSOR_BYTES // 4, dtype="float32")
    fill_with_noise(engine.device, int(whole.data.ptr), TENSOR_BYTES)
    tensors = {f"layer.{number}": whole for number in range(TENSORS_BYTES // TENSOR_BYTES)}
    repository = new_repository()
    snapshot_tensors(repository, tensors)
    begun, used = time.perf_counter(), time.process_time()
    result = snapshot_tensors(repository, tensors)
    seconds, processors = time.perf_counter() - begun, time.process_time() - used
    size = result.snapshot.statistics.size
    session.figure(f"snapshot of {size / 1e9:.0f} GB of unchanged tensors", seconds, "s", result.engine)
    session.figure("CPU used meanwhile", processors / seconds, "cores")
    session.figure("copied down meanwhile", result.copied_size / 1e6, "MB")
    return f"{size / seconds / 1e9:.1f} GB/s, the opening of the device and its self-check included"


def file_snapshots(session: Session, folder: Path) -> str:
    """Files that are in the page cache, into a repository beside them, by the command line."""
    from blake3 import blake3

    source = folder / "source"
    source.mkdir()
    part = FILE_DATA_BYTES // 8
    for number in range(8):
        (source / f"file{number}").write_bytes(blake3(b"%d" % number).digest(length=part))
    for compression in ("none", "default"):
        for engine in ("cpu", "cuda"):
            place = folder / f"{engine}-{compression}"
            run_ohdiff("init", "--no-encryption", "--repo", str(place))
            options = ("--engine", engine, "--compression", compression, "--json", "--repo", str(place))
            first = json.loads(run_ohdiff("snapshot", str(source), *options).splitlines()[-1])
            again = json.loads(run_ohdiff("snapshot", str(source), "--force", *options).splitlines()[-1])
            for what, summary in (("new", first), ("read again, known", again)):
                rate = summary["bytes_read"] / summary["total_duration"] / 1e9
                remark = summary["engine"] + ("" if summary["engine"].startswith(engine) else " (!)")
                session.figure(f"files {what}, compression {compression}, {engine}", rate, "GB/s", remark)
    return f"{FILE_DATA_BYTES >> 20} MiB of files"


def new_compressor() -> Any:
    from ohdiff.chunking.compressor import open_compressor
    from ohdiff.chunking.engine import Accelerator
    from ohdiff.repository.chunk_writer import BLOCK_SIZE_BYTES

    return open_compressor(Accelerator(), BLOCK_SIZE_BYTES)[0]


def compression_rates(session: Session) -> str:
    """Blocks of text and machine code to zstd frames, by nvCOMP and by every processor."""
    import os

    from ohdiff.chunking.cuda.placement import judge_compression
    from ohdiff.operations.calibration import measure_compression, measure_profile

    if (missing := missing_extra("nvcomp")) is not None:
        return missing
    profile = measure_profile(new_engine(), len(os.sched_getaffinity(0)), NOISE_BYTES)
    compressor = new_compressor()
    profile = measure_compression(profile, compressor)
    session.figure("blocks compressed by nvCOMP", profile.compress_rate / 1e9, "GB/s", compressor.name)
    session.figure(f"blocks compressed by {profile.processors} threads", profile.cpu_compress_rate / 1e9, "GB/s")
    session.figure("size of nvCOMP's frames beside level 3", profile.compress_size, "times")
    counts = compressor.counts
    session.figure("blocks in a batch", counts.blocks / max(1, counts.batches), "blocks")
    return judge_compression(profile).reason


def compressed_snapshots(session: Session, folder: Path) -> str:
    """New files of text and machine code, compressed here and there, end to end."""
    from ohdiff.operations.calibration import sample_blocks

    if (missing := missing_extra("nvcomp")) is not None:
        return missing
    source = folder / "compressible"
    source.mkdir()
    for number, block in enumerate(sample_blocks(SAMPLE_BLOCKS)):
        # Different from one to the next, lest they be known.
        (source / f"file{number}").write_bytes(bytes((byte + number) % 256 for byte in block[:4096]) + block[4096:])
    for where in ("cpu", "device"):
        place = folder / f"compressed-{where}"
        run_ohdiff("init", "--no-encryption", "--repo", str(place))
        options = ("--engine", "cuda", "--compress-on", where, "--json", "--repo", str(place))
        summary = json.loads(run_ohdiff("snapshot", str(source), *options).splitlines()[-1])
        rate = summary["bytes_read"] / summary["total_duration"] / 1e9
        session.figure(f"new files, compressed on the {where}", rate, "GB/s", summary["compression_reason"])
        session.figure(f"stored, compressed on the {where}", summary["data_added_packed"] / 1e6, "MB")
        run_ohdiff("check", "--read-data", "--repo", str(place))
    return "both repositories are sound"


def encoded_tensors(session: Session) -> str:
    """Weights on the device, and a step after them: new pieces, encoded here and there."""
    from ohdiff.operations.tensors import snapshot_tensors

    if (missing := missing_extra("nvcomp")) is not None:
        return missing
    cupy: Any = new_engine().device.cupy
    values = (cupy.random.standard_normal(TENSOR_BYTES // 8) * 0.02).astype("float32")
    noise = cupy.random.standard_normal(TENSOR_BYTES // 8) * 1e-4
    step = (values * (1 + noise)).astype("float32")
    for where in ("cpu", "device"):
        repository = new_repository()
        for what, tensor in (("first", values), ("one step on", step)):
            result = snapshot_tensors(repository, {"w": tensor}, compress_on=where)
            counts = result.snapshot.statistics
            rate = counts.size / counts.duration_ns
            session.figure(f"tensors on the device, {what}, encoded on the {where}", rate, "GB/s", result.compression)
            session.figure(f"stored, {what}, {where}", counts.added_stored_size / 1e6, "MB")
            session.figure(f"copied down, {what}, {where}", result.copied_size / 1e6, "MB")
    return "done"


def beside_a_job(session: Session) -> str:
    """What a job on the device notices of a scavenging snapshot of tensors, and what that gets."""
    from gpu_sharing import sharing

    return sharing(session)


def direct_snapshots(session: Session, folder: Path) -> str:
    """A large file that is known: through the page cache, emptied of it, and past the CPU."""
    import os

    from blake3 import blake3

    if (missing := missing_extra("kvikio")) is not None:
        return missing
    path = folder / "direct" / "file"
    path.parent.mkdir()
    path.write_bytes(blake3(b"direct").digest(length=FILE_DATA_BYTES))
    place = folder / "direct-repository"
    run_ohdiff("init", "--no-encryption", "--repo", str(place))
    options = ("--force", "--json", "--repo", str(place))
    run_ohdiff("snapshot", str(path), "--engine", "cpu", *options)
    for engine in ("cpu", "cuda"):
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        summary = json.loads(run_ohdiff("snapshot", str(path), "--engine", engine, *options).splitlines()[-1])
        rate = summary["bytes_read"] / summary["total_duration"] / 1e9
        session.figure(f"known file from the disk, {engine}", rate, "GB/s", summary["direct_reason"] or "")
    return f"{FILE_DATA_BYTES >> 20} MiB"


def missing_extra(name: str) -> str | None:
    """Why an optional library cannot be used; None if it can."""
    from ohdiff.chunking.cuda.extras import find_extras

    (found,) = [extra for extra in find_extras() if extra.name.lower() == name]
    return None if found.is_usable else f"not measured: {found.state}"


def run_ohdiff(*arguments: str) -> str:
    done = subprocess.run([sys.executable, "-m", "ohdiff", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"ohdiff {arguments[0]}: {done.stderr.strip()[-500:]}")
    return done.stdout


def write_results(session: Session, described: dict[str, object], output: Path) -> None:
    """JSON, a table for people, and bars where matplotlib is installed."""
    output.mkdir(parents=True, exist_ok=True)
    stem = f"{time.strftime('%Y-%m-%d')}-{str(described['name']).replace(' ', '-').lower()}"
    results = {"device": described, "steps": session.steps, "figures": session.figures}
    (output / f"{stem}.json").write_text(json.dumps(results, indent=1) + "\n")
    (output / f"{stem}.md").write_text("\n".join(report_lines(session, described)) + "\n")
    plot(session.figures, output / f"{stem}.png")
    print(f"written: {output / stem}.json, .md", flush=True)


def report_lines(session: Session, described: dict[str, object]) -> list[str]:
    lines = [f"# {described['name']} ({described['architecture']}), driver for CUDA {described['driver_version']}", ""]
    lines += ["| measured | | | |", "|---|---|---|---|"]
    lines += [f"| {what} | {value:.3g} | {unit} | {remark} |" for what, value, unit, remark in session.figures]
    return [
        *lines,
        "",
        "| step | outcome |",
        "|---|---|",
        *(f"| {step} | {outcome} |" for step, outcome in session.steps),
    ]


def plot(figures: Sequence[tuple[str, float, str, str]], path: Path) -> None:
    """Rates as bars."""
    try:
        import matplotlib
    except ImportError:
        return
    matplotlib.use("Agg")
    from matplotlib import pyplot

    rates = [(what, value) for what, value, unit, _ in figures if unit == "GB/s"]
    figure, chart = pyplot.subplots(figsize=(9, 1 + 0.3 * len(rates)))
    chart.barh([what for what, _ in rates][::-1], [value for _, value in rates][::-1])
    chart.set_xscale("log")
    chart.set_xlabel("GB/s")
    figure.tight_layout()
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    sys.exit(main())
