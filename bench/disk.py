#!/usr/bin/env python3
"""What the disk alone takes for the row `js_pub_16k_r1_file`: the bound of a server that writes as Tidelock does.

Writes past the page cache what a run of that row writes, with no server and no client: the batches of the log, each
synced; at the same time the pieces of block files, two at once, each file and its folder synced when it is whole; and
the zeros of new segments of the log. Prints the messages a second that this comes to.

    bench/disk.py [--dir D] [--rounds 9] [--messages 20000] [--payload 16384] [--segments 7]
"""

import argparse
import mmap
import os
import queue
import shutil
import statistics
import tempfile
import threading
import time

BATCH = 576 << 10
PIECE = 512 << 10
BLOCK = 4 << 20
SEGMENT = 16 << 20
ZEROS = 256 << 10
FLAGS = os.O_RDWR | os.O_CREAT | os.O_DIRECT


def memory(size: int) -> mmap.mmap:
    """Memory at the start of a page, filled with noise."""
    buffer = mmap.mmap(-1, size)
    buffer.write(os.urandom(size))
    return buffer


def fill(path: str, piece: mmap.mmap) -> None:
    """A segment of the log, as one is made ahead of its use."""
    fd = os.open(path, FLAGS)
    for at in range(0, SEGMENT, len(piece)):
        os.pwrite(fd, piece, at)
    os.fsync(fd)
    os.close(fd)


def log(folder: str, segments: int, total: int) -> None:
    """Batches, one after the other, over segments that exist."""
    fds = [os.open(f"{folder}/log-{n}", FLAGS) for n in range(segments)]
    batches = [memory(BATCH), memory(BATCH)]
    fit = SEGMENT // BATCH
    for n in range(total // BATCH):
        fd = fds[n // fit % segments]
        os.pwrite(fd, batches[n % 2], n % fit * BATCH)
        os.fdatasync(fd)
    for fd in fds:
        os.close(fd)


def blocks(folder: str, todo: "queue.SimpleQueue[int]", whole: "queue.SimpleQueue[int | None]") -> None:
    """Files of blocks, piece by piece."""
    piece = memory(PIECE)
    while True:
        try:
            number = todo.get_nowait()
        except queue.Empty:
            return
        fd = os.open(f"{folder}/block-{number}", FLAGS)
        for at in range(0, BLOCK, PIECE):
            os.pwrite(fd, piece, at)
        whole.put(fd)


def sync(folder: str, whole: "queue.SimpleQueue[int | None]") -> None:
    """Syncs each file that is whole, and its folder."""
    there = os.open(folder, os.O_RDONLY)
    while (fd := whole.get()) is not None:
        os.fdatasync(fd)
        os.close(fd)
        os.fsync(there)
    os.close(there)


def run(folder: str, total: int, segments: int) -> float:
    zeros = mmap.mmap(-1, ZEROS)
    for n in range(3):
        fill(f"{folder}/log-{n}", zeros)
    todo: queue.SimpleQueue[int] = queue.SimpleQueue()
    whole: queue.SimpleQueue[int | None] = queue.SimpleQueue()
    for number in range(total // BLOCK):
        todo.put(number)
    syncing = threading.Thread(target=sync, args=(folder, whole))
    others = [
        threading.Thread(target=log, args=(folder, 3, total)),
        threading.Thread(target=blocks, args=(folder, todo, whole)),
        threading.Thread(target=blocks, args=(folder, todo, whole)),
        threading.Thread(target=lambda: [fill(f"{folder}/new-{n}", zeros) for n in range(segments)]),
    ]
    start = time.perf_counter()
    syncing.start()
    for thread in others:
        thread.start()
    for thread in others:
        thread.join()
    whole.put(None)
    syncing.join()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dir", default=tempfile.gettempdir())
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--payload", type=int, default=16_384)
    parser.add_argument("--segments", type=int, default=7, help="segments that are filled with zeros meanwhile")
    args = parser.parse_args()
    rates = []
    for _ in range(args.rounds):
        folder = tempfile.mkdtemp(dir=args.dir)
        try:
            taken = run(folder, args.messages * args.payload, args.segments)
        finally:
            shutil.rmtree(folder)
        rates.append(args.messages / taken)
    print(f"msgs_s={statistics.median(rates):,.0f}  lowest {min(rates):,.0f}  highest {max(rates):,.0f}")


if __name__ == "__main__":
    main()
