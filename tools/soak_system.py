"""What tools/soak.py needs of Linux: control groups with hard limits, the memory of a process from outside, the page cache of a file."""
import ctypes
import mmap
import os
import resource
import sys
import threading
import time
import uuid

SAMPLE_S = 0.005


def read(path):
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return ""


class Group:
    """A memory control group of its own (version 1 or 2) with a hard limit and no swap; gone when it is closed."""

    def __init__(self, limit):
        self.one = os.path.isdir("/sys/fs/cgroup/memory")
        name = f"coldpress_soak_{uuid.uuid4().hex[:8]}"
        self.path = f"/sys/fs/cgroup/memory/{name}" if self.one else f"/sys/fs/cgroup/{name}"
        os.mkdir(self.path)
        try:
            self.write("memory.limit_in_bytes" if self.one else "memory.max", limit)
        except OSError:
            # Version 2 where the controller is not passed on.
            os.rmdir(self.path)
            raise
        for knob, value in (("memory.swappiness", 0), ("memory.memsw.limit_in_bytes", limit), ("memory.swap.max", 0)):
            try:
                self.write(knob, value)
            except OSError:
                pass
        self.limit = limit

    def write(self, knob, value):
        # Opening must not create: a file that is not there is a knob that this version does not have.
        descriptor = os.open(f"{self.path}/{knob}", os.O_WRONLY)
        try:
            os.write(descriptor, str(value).encode())
        finally:
            os.close(descriptor)

    def enter(self):
        self.write("cgroup.procs", os.getpid())

    def number(self, one, two):
        return int(read(f"{self.path}/{one if self.one else two}").strip() or 0)

    def field(self, file, name):
        for line in read(f"{self.path}/{file}").splitlines():
            words = line.split()
            if words[:1] == [name]:
                return int(words[1])
        return 0

    def peak(self):
        return self.number("memory.max_usage_in_bytes", "memory.peak")

    def kills(self):
        return self.field("memory.oom_control" if self.one else "memory.events", "oom_kill")

    def lower(self, limit, seconds=10):
        """Lowers the limit: first softly, so that everybody may react, then hard, as soon as the system lets us."""
        self.write("memory.soft_limit_in_bytes" if self.one else "memory.high", limit)
        until = time.monotonic() + seconds
        while True:
            try:
                # Version 2 never refuses, and kills instead; so it waits for the use to fall.
                if self.one or self.number("", "memory.current") <= limit or time.monotonic() > until:
                    self.write("memory.limit_in_bytes" if self.one else "memory.max", limit)
                    self.limit = limit
                    return True
            except OSError:
                if time.monotonic() > until:
                    return False
            time.sleep(0.02)

    def close(self):
        for _ in range(100):
            try:
                return os.rmdir(self.path)
            except OSError:
                time.sleep(0.05)


class Watch:
    """Samples the memory of a process from outside until it is told to stop."""

    def __init__(self, pid):
        self.rss, self.anon, self.samples = 0, 0, 0
        self.page = resource.getpagesize()
        self.path = f"/proc/{pid}/statm"
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self.sample, daemon=True)
        self.thread.start()

    def now(self):
        words = read(self.path).split()
        if len(words) < 3:
            return 0, 0
        resident, shared = int(words[1]) * self.page, int(words[2]) * self.page
        return resident, resident - shared

    def sample(self):
        while not self.ended.wait(SAMPLE_S):
            rss, anon = self.now()
            self.rss, self.anon, self.samples = max(self.rss, rss), max(self.anon, anon), self.samples + 1

    def stop(self):
        self.ended.set()
        self.thread.join()


def cached(path):
    """Bytes of a file in the page cache (`mincore` of a mapping that touches nothing)."""
    size, page = os.path.getsize(path), resource.getpagesize()
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    with open(path, "rb") as file:
        start = libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, file.fileno(), 0)
    if start in (None, ctypes.c_void_p(-1).value):
        sys.exit(f"soak: cannot map {path}")
    pages = ctypes.create_string_buffer(-(-size // page))
    libc.mincore(start, size, pages)
    libc.munmap(start, size)
    return sum(byte & 1 for byte in pages.raw) * page


def forget(*paths):
    """Puts files out of the page cache."""
    for path in paths:
        with open(path, "rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
