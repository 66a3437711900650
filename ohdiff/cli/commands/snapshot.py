"""ohdiff snapshot: take one, of paths, of standard input, or of a program's output."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import click

from ohdiff import clock
from ohdiff.chunking.compressor import COMPRESSING_THREADS, CompressorChoice
from ohdiff.chunking.engine import EngineChoice
from ohdiff.errors import (
    EXIT_DONE,
    EXIT_INTEGRITY,
    EXIT_PARTIAL,
    IntegrityError,
    NoSnapshotError,
    OhdiffError,
    SourceError,
    UsageError,
)
from ohdiff.operations.complete import CompleteRules
from ohdiff.operations.estimate import SourceEstimate
from ohdiff.operations.excludes import ExcludeOptions, ExcludeRules
from ohdiff.operations.memory_plan import plan_memory
from ohdiff.operations.snapshot import SnapshotOptions, SnapshotResult, make_snapshot
from ohdiff.operations.snapshot_stream import ByteStream, check_name, make_stream_snapshot
from ohdiff.operations.source_paths import resolve_path
from ohdiff.operations.source_rules import DirectoryRules, KeepAll
from ohdiff.repository.snapshots import StoredSnapshot, find_snapshot, read_snapshots
from ohdiff.scheduling.core import JobClass
from ohdiff.scheduling.pace import Pace
from ohdiff.scheduling.window import Work

from .. import environment
from ..access import Access, opened, own_folders
from ..compression import compression_options
from ..engines import choose_compressor, direct_reader
from ..manners import Manners, governed, lowered, manners_options, share_device
from ..progress import Reporter, reporting
from ..selection import split_tags, tell_damaged
from ..shared import Output, engine_options, shared
from ..text import counted, format_duration, format_size, parse_size, parse_time, path_fields, shown


@dataclass(frozen=True, slots=True)
class Request:
    """The options of the command, as given."""

    paths: tuple[str, ...]
    tags: tuple[str, ...]
    host: str | None
    excludes: tuple[str, ...]
    exclude_files: tuple[str, ...]
    exclude_if_present: tuple[str, ...]
    exclude_caches: bool
    exclude_larger_than: str | None
    ignore_files: tuple[str, ...]
    only_complete: bool
    one_file_system: bool
    parent: str | None
    is_forced: bool
    stdin_filename: str | None
    is_command: bool
    read_concurrency: int | None
    skip_if_unchanged: bool
    time: str | None
    memory: str | None
    compression: tuple[int | None]
    compress_on: str
    engine_name: str
    kernel: str
    priority: str
    max_impact: float
    deadline: str | None
    device_share: float

    @property
    def manners(self) -> Manners:
        """How much it may be noticed."""
        return Manners(self.priority, self.max_impact, self.deadline, self.device_share)


@click.command("snapshot")
@click.argument("paths", metavar="PATH...", nargs=-1, type=click.Path())
@click.option("--tag", "tags", multiple=True, metavar="TAG", help="Give the snapshot a tag; repeat, or use commas.")
@click.option("--host", metavar="NAME", help="Host to be noted. [env: OHDIFF_HOST]")
@click.option("-e", "--exclude", "excludes", multiple=True, metavar="PATTERN", help="Leave out, as in a .gitignore.")
@click.option("--exclude-file", "exclude_files", multiple=True, metavar="FILE", help="Read such patterns from a file.")
@click.option(
    "--exclude-if-present",
    multiple=True,
    metavar="NAME",
    help="Keep nothing of a folder that holds this name, but the file itself.",
)
@click.option("--exclude-caches", is_flag=True, help="The same for folders with a valid CACHEDIR.TAG.")
@click.option("--exclude-larger-than", metavar="SIZE", help="Leave out larger files.")
@click.option(
    "--ignore-files", multiple=True, metavar="NAME", help="Obey files of this name, such as .gitignore, in each folder."
)
@click.option("--only-complete", is_flag=True, help="Leave out checkpoint folders that are still being written.")
@click.option("-x", "--one-file-system", is_flag=True, help="Do not enter other file systems.")
@click.option(
    "--parent", metavar="SNAPSHOT", help="Skip what is unchanged since this one; else the last of these paths."
)
@click.option("-f", "--force", "is_forced", is_flag=True, help="Read every file, changed or not.")
@click.option("--stdin-filename", metavar="NAME", help="Store standard input, or the command's output, as this file.")
@click.option("--command", "is_command", is_flag=True, help="Run what follows --, and store what it prints.")
@click.option("--read-concurrency", type=click.IntRange(1, 64), metavar="N", help="Files that are read at a time.")
@click.option("--skip-if-unchanged", is_flag=True, help="Make no snapshot if nothing has changed.")
@click.option("--time", metavar="TIME", help="Time to be noted, instead of now.")
@click.option("--memory", metavar="SIZE", help="Most memory to use.")
@compression_options
@engine_options
@manners_options
@shared(dry_run=True)
def snapshot(output: Output, **options: object) -> int:
    """Snapshot files and folders (alias: backup).

    What has not changed since the last snapshot of the same paths is not read again. The links in a given PATH are
    followed, those below are kept as links.

    \b
    ohdiff snapshot ~/work --exclude '*.tmp' --tag daily
    pg_dump db | ohdiff snapshot --stdin-filename db.sql
    ohdiff snapshot --stdin-filename db.sql --command -- pg_dump db
    """
    request = Request(**options)  # type: ignore[arg-type]
    share_device(request.manners)
    if request.is_command or request.stdin_filename is not None:
        return _snapshot_stream(output, request)
    with lowered(request.manners):
        return _snapshot_paths(output, request)


def _snapshot_paths(output: Output, request: Request) -> int:
    if not request.paths:
        raise UsageError("no path was given", hint="name what to snapshot: ohdiff snapshot PATH...")
    paths, missing = _existing(request.paths)
    with opened(output, makes_default=not output.settings.is_dry_run) as access:
        compressing = _compressor(request)
        engine = access.engine(request.engine_name, request.kernel, compressing.memory_left)
        listed = read_snapshots(access.repository)
        options = _options(output, request, access, paths, listed.stored, compressing)
        with ExitStack() as stack:
            reporter = stack.enter_context(reporting(output, "snapshot"))
            options = replace(options, pace=stack.enter_context(_governed(request, options, engine, reporter)))
            compressing.follow(engine.engine)
            options = replace(options, direct=direct_reader(engine.engine))
            for error in missing:
                reporter.error(error)
            if reporter.is_showing or request.deadline is not None:
                reporter.estimate = stack.enter_context(_estimate(paths, options))
            with _saying_what_is_kept(output, access, reporter):
                result = make_snapshot(access.repository, access.index, engine.engine, paths, options, reporter)
        _say_left_out(output, access, options, paths)
    _summarize(output, result, engine, compressing, options)
    return tell_damaged(output, listed, "snapshot") or _exit_code([*result.errors, *missing])


def _exit_code(errors: Sequence[OhdiffError]) -> int:
    """Damage of the repository counts more than a file that could not be read."""
    if any(isinstance(error, IntegrityError) for error in errors):
        return EXIT_INTEGRITY
    return EXIT_PARTIAL if errors else EXIT_DONE


def _existing(paths: Sequence[str]) -> tuple[list[bytes], list[SourceError]]:
    """The resolved paths of what is there, and an error for each that is not."""
    found: list[bytes] = []
    missing: list[SourceError] = []
    for path in paths:
        try:
            Path(path).stat()
        except OSError as error:
            name = shown(os.fsencode(path))
            missing.append(SourceError(f"{name}: {error.strerror}; it is not in the snapshot", item=name))
        else:
            found.append(resolve_path(path))
    if not found:
        raise OhdiffError(
            "nothing to snapshot: " + "; ".join(error.message.partition(";")[0] for error in missing),
            hint="check the paths; no snapshot was made",
        )
    return list(dict.fromkeys(found)), missing


def _options(
    output: Output,
    request: Request,
    access: Access,
    paths: Sequence[bytes],
    known: Sequence[StoredSnapshot],
    compressing: CompressorChoice,
) -> SnapshotOptions:
    excludes = _exclude_options(request, access, paths)
    rules = ExcludeRules(excludes) if excludes else KeepAll()
    host = request.host or environment.host_name()
    memory = None if request.memory is None else parse_size(request.memory)
    processors = environment.processor_count()
    # Threads that wait for a device need no processor, but a batch needs blocks.
    workers = processors if compressing.compressor is None else max(processors, COMPRESSING_THREADS)
    plan = plan_memory(memory, workers, request.read_concurrency)
    return SnapshotOptions(
        time_ns=clock.now_ns() if request.time is None else parse_time(request.time),
        host=host,
        user=environment.user_name(),
        tags=split_tags(request.tags),
        parent=_parent(access, request, host, paths, known),
        is_forced=request.is_forced,
        is_dry_run=output.settings.is_dry_run,
        skip_if_unchanged=request.skip_if_unchanged,
        one_file_system=request.one_file_system,
        level=request.compression[0],
        readers=plan.readers,
        encoders=plan.encoders,
        queue_depth=plan.queue_depth,
        compressor=compressing.compressor,
        rules=CompleteRules(rules) if request.only_complete else rules,
        excludes=(*_excludes_in_words(excludes), *(["--only-complete"] if request.only_complete else [])),
    )


def _compressor(request: Request) -> CompressorChoice:
    is_scavenging = request.manners.job_class is JobClass.SCAVENGE
    return choose_compressor(request.compress_on, request.compression[0], is_scavenging=is_scavenging)


def _governed(
    request: Request, options: SnapshotOptions, engine: EngineChoice, reporter: Reporter
) -> AbstractContextManager[Pace]:
    def work() -> Work:
        """What there is to do by the estimate, which grows while it counts; of a stream nothing is known."""
        estimate = reporter.estimate
        return Work() if estimate is None else estimate.work(reporter.last.files_done)

    # One thread more walks.
    threads = options.readers + options.encoders + 1
    return governed(request.manners, threads, reporter.note, work, engine.engine)


def _estimate(paths: Sequence[bytes], options: SnapshotOptions) -> SourceEstimate:
    parent = options.parent
    return SourceEstimate(
        paths,
        _rules_for_estimate(options.rules),
        one_file_system=options.one_file_system,
        settled_ns=options.settled_ns,
        settled_paths=() if parent is None else parent.snapshot.paths,
        files_likely=0 if parent is None else parent.snapshot.statistics.files,
    )


def _rules_for_estimate(rules: DirectoryRules) -> DirectoryRules:
    """What the estimate leaves out is not told: a checkpoint may be whole by the time of the walk."""
    return CompleteRules(rules.rules) if isinstance(rules, CompleteRules) else rules


def _say_left_out(output: Output, access: Access, options: SnapshotOptions, paths: Sequence[bytes]) -> None:
    """Name the folders that --only-complete left out; of a given path, that is its files."""
    left_out = options.rules.left_out if isinstance(options.rules, CompleteRules) else {}
    for path, reasons in left_out.items():
        parent = options.parent if _is_in(access, options.parent, path) else None
        parent_id = None if parent is None else parent.snapshot_id.hex()
        is_given = (path or b"/") in paths
        output.record("left_out", **path_fields(path), reasons=reasons, parent_id=parent_id, only_files=is_given)
        if not output.is_json:
            what = f"the files in {shown(path)}" if is_given else shown(path)
            before = "" if parent is None else f"; it is in the parent snapshot {parent.short_id}"
            output.warning(f"left out: {what}: {'; '.join(reasons)}{before}")


def _is_in(access: Access, stored: StoredSnapshot | None, path: bytes) -> bool:
    try:
        return stored is not None and access.tree.find(stored.root, path) is not None
    except NoSnapshotError:
        return False


def _parent(
    access: Access, request: Request, host: str, paths: Sequence[bytes], known: Sequence[StoredSnapshot]
) -> StoredSnapshot | None:
    """The given parent, or the latest snapshot of this host and exactly these paths."""
    if request.parent is not None:
        return find_snapshot(access.repository, request.parent)
    for stored in reversed(known):
        if stored.snapshot.host == host and set(stored.snapshot.paths) == set(paths):
            return stored
    return None


def _exclude_options(request: Request, access: Access, paths: Sequence[bytes]) -> ExcludeOptions:
    patterns = list(request.excludes)
    for name in request.exclude_files:
        patterns += Path(name).read_text(errors="surrogateescape").splitlines()
    patterns += _own_patterns(access, paths)
    return ExcludeOptions(
        patterns=tuple(patterns),
        if_present=tuple(os.fsencode(name) for name in request.exclude_if_present),
        caches=request.exclude_caches,
        larger_than=None if request.exclude_larger_than is None else parse_size(request.exclude_larger_than),
        ignore_files=tuple(os.fsencode(name) for name in request.ignore_files),
    )


def _own_patterns(access: Access, paths: Sequence[bytes]) -> list[str]:
    """Patterns for the repository and its cache, where they lie in what is snapshotted: they would grow for ever."""
    return [
        "".join("\\" + letter if letter in "\\*?[] !#" else letter for letter in os.fsdecode(folder)) + "/"
        for folder in own_folders(access.repository)
        if any(folder.startswith(path.rstrip(b"/") + b"/") for path in paths)
    ]


def _excludes_in_words(options: ExcludeOptions) -> tuple[str, ...]:
    words = [pattern.encode(errors="replace").decode() for pattern in options.patterns]
    words += [f"--exclude-if-present {shown(name)}" for name in options.if_present]
    words += ["--exclude-caches"] if options.caches else []
    words += [] if options.larger_than is None else [f"--exclude-larger-than {options.larger_than}"]
    words += [f"--ignore-files {shown(name)}" for name in options.ignore_files]
    return tuple(words)


@contextmanager
def _saying_what_is_kept(output: Output, access: Access, reporter: Reporter) -> Iterator[None]:
    known = access.index.chunk_count
    try:
        yield
    except KeyboardInterrupt:
        new = access.index.chunk_count - known
        output.note(
            f"no snapshot was made; {counted(reporter.last.files_done, 'file')} were looked at, and "
            f"{counted(new, 'new chunk')} of them are kept: the next snapshot will not store them again"
        )
        raise


def _snapshot_stream(output: Output, request: Request) -> int:
    name = os.fsencode((request.stdin_filename or "stdin").removeprefix("/"))
    check_name(name)
    if request.is_command and not request.paths:
        raise UsageError("no command was given", hint="write it last: --command -- PROGRAM ARGUMENT...")
    if not request.is_command and request.paths:
        raise UsageError(
            "standard input and paths cannot be in one snapshot", hint="leave out PATH, or add --command --"
        )
    with opened(output, makes_default=not output.settings.is_dry_run) as access:
        compressing = _compressor(request)
        engine = access.engine(request.engine_name, request.kernel, compressing.memory_left)
        listed = read_snapshots(access.repository)
        request = replace(request, excludes=())
        options = _options(output, request, access, [b"/" + name], listed.stored, compressing)
        with ExitStack() as stack:
            reporter = stack.enter_context(reporting(output, "snapshot"))
            # Before we are lowered: a command's priority is its own affair.
            source = stack.enter_context(_source(request))
            stack.enter_context(lowered(request.manners))
            options = replace(options, pace=stack.enter_context(_governed(request, options, engine, reporter)))
            compressing.follow(engine.engine)
            result = make_stream_snapshot(
                access.repository,
                access.index,
                engine.engine,
                name,
                source.stream,
                options,
                reporter,
                confirm=source.confirm,
            )
    _summarize(output, result, engine, compressing, options)
    return tell_damaged(output, listed, "snapshot") or _exit_code(result.errors)


class _Stream:
    """Standard input, or a program's output, which counts only if the program succeeds."""

    def __init__(self, stream: ByteStream, process: subprocess.Popen[bytes] | None = None) -> None:
        self.stream = stream
        self._process = process

    def confirm(self) -> None:
        """Raise if the program failed."""
        if self._process is not None and self._process.wait() != 0:
            raise OhdiffError(
                f"the command ended with {self._process.returncode}; no snapshot was made",
                hint="run it by itself to see why",
            )


@contextmanager
def _source(request: Request) -> Iterator[_Stream]:
    if not request.is_command:
        yield _Stream(cast(ByteStream, sys.stdin.buffer))
        return
    try:
        process = subprocess.Popen(request.paths, stdout=subprocess.PIPE)
    except OSError as error:
        raise OhdiffError(f"{request.paths[0]} cannot be run: {error.strerror}; no snapshot was made") from error
    assert process.stdout is not None
    try:
        yield _Stream(cast(ByteStream, process.stdout), process)
    finally:
        if process.poll() is None:
            process.terminate()
        process.stdout.close()
        process.wait()


def _summarize(
    output: Output,
    result: SnapshotResult,
    engine: EngineChoice,
    compressing: CompressorChoice,
    options: SnapshotOptions,
) -> None:
    counts = result.snapshot.statistics
    seconds = counts.duration_ns / 1e9
    text = [
        f"files:     {counts.files_new:,} new, {counts.files_changed:,} changed, {counts.files_unchanged:,} unchanged",
        f"processed: {counted(counts.files, 'file')}, {format_size(counts.size)} in {format_duration(seconds)}",
        f"added:     {format_size(counts.added_size)}"
        + ("" if options.is_dry_run else f", stored in {format_size(counts.added_stored_size)}"),
        engine.reason,
        *([] if compressing.compressor is None else [compressing.reason]),
        *([] if options.direct is None else [options.direct.reason]),
        _outcome(result, options),
    ]
    output.summary(
        text,
        snapshot_id=None if result.stored is None else result.stored.snapshot_id.hex(),
        parent_id=result.snapshot.parent.hex() or None,
        files_new=counts.files_new,
        files_changed=counts.files_changed,
        files_unmodified=counts.files_unchanged,
        total_files_processed=counts.files,
        total_directories_processed=counts.directories,
        total_bytes_processed=counts.size,
        bytes_read=counts.read_size,
        data_added=counts.added_size,
        data_added_packed=counts.added_stored_size,
        chunks_added=counts.added_chunks,
        error_count=counts.errors,
        total_duration=seconds,
        engine=f"{engine.engine.name}/{engine.engine.kernel}",
        engine_reason=engine.reason,
        compression_reason=compressing.reason,
        direct_reason=None if options.direct is None else options.direct.reason,
        dry_run=options.is_dry_run,
    )


def _outcome(result: SnapshotResult, options: SnapshotOptions) -> str:
    if result.stored is not None:
        return f"snapshot {result.stored.short_id} saved"
    return "dry run: nothing was stored" if options.is_dry_run else "nothing has changed: no snapshot was made"
