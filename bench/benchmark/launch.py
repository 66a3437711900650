"""Run one pipeline in as small a process as Python allows, and write down what it used.

usage: launch.py REPORT STDOUT STDERR COMMAND [ARGUMENT...] ['|' COMMAND [ARGUMENT...]]...

A process of its own, because Linux counts the memory of the process that forks into the peak of the command that it
starts: from here that is about 7 MB, from the bench itself it would be whatever the bench has grown to. Only modules
that are loaded anyway are imported. REPORT gets wall, user and system seconds, peak bytes, and each exit code.
"""

import os
import sys
import time

RSS_UNIT_BYTES = 1 if sys.platform == "darwin" else 1024


def split_pipeline(arguments: list[str]) -> list[list[str]]:
    commands: list[list[str]] = [[]]
    for argument in arguments:
        if argument == "|":
            commands.append([])
        else:
            commands[-1].append(argument)
    return commands


def start(command: list[str], stdin: int, stdout: int, stderr: int) -> int:
    """Fork and execute; fork and not posix_spawn, which would count this process's whole memory, not its own pages."""
    pid = os.fork()
    if pid:
        return pid
    try:
        for place, descriptor in enumerate((stdin, stdout, stderr)):
            os.dup2(descriptor, place)
        os.execvp(command[0], command)
    except OSError as error:
        os.write(2, f"{command[0]}: {error}\n".encode())
    os._exit(127)


def start_pipeline(commands: list[list[str]], stdout: int, stderr: int) -> list[int]:
    pids, stdin = [], os.open(os.devnull, os.O_RDONLY)
    for command in commands[:-1]:
        reader, writer = os.pipe()
        pids.append(start(command, stdin, writer, stderr))
        os.close(stdin)
        os.close(writer)
        stdin = reader
    pids.append(start(commands[-1], stdin, stdout, stderr))
    os.close(stdin)
    return pids


def create(path: str) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)


def main() -> None:
    report, stdout, stderr = sys.argv[1:4]
    commands = split_pipeline(sys.argv[4:])
    outputs = create(stdout), create(stderr)
    begin = time.perf_counter()
    ends = [os.wait4(pid, 0) for pid in start_pipeline(commands, *outputs)]
    wall = time.perf_counter() - begin
    user = sum(used.ru_utime for _, _, used in ends)
    system = sum(used.ru_stime for _, _, used in ends)
    peak = max(used.ru_maxrss for _, _, used in ends) * RSS_UNIT_BYTES
    codes = [os.waitstatus_to_exitcode(status) for _, status, _ in ends]
    with open(report, "w") as file:
        file.write(" ".join(map(str, (wall, user, system, peak, *codes))) + "\n")


if __name__ == "__main__":
    main()
