"""What the peers of bench/cpu.sh print: the median of the milliseconds of a step, and MiB of memory."""
import resource
import statistics
import time


def peak():
    """The most memory that this process has had, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def report(step, seconds, before, warm=5):
    """As many steps as fit the seconds, after some that are not counted; before is peak() after imports."""
    for _ in range(warm):
        step()
    times, begin = [], time.perf_counter()
    while time.perf_counter() - begin < seconds or len(times) < 3:
        start = time.perf_counter()
        step()
        times.append(1e3 * (time.perf_counter() - start))
    print(f"{statistics.median(times):.4f} {peak() - before:.1f}")
