// A thread that may use one CPU, as under `taskset -c 0`.
#pragma once

#include <gtest/gtest.h>
#include <sched.h>

#include <thread>

namespace sluice::test {

/// Calls f() on a thread of its own, whose affinity mask has the first CPU of the caller's. What f starts has it too.
template <class F>
void on_one_cpu(const F& f) {
  std::thread([&f] {
    cpu_set_t mask;
    ASSERT_EQ(sched_getaffinity(0, sizeof mask, &mask), 0);
    int one = 0;
    while (!CPU_ISSET(one, &mask)) ++one;
    CPU_ZERO(&mask);
    CPU_SET(one, &mask);
    ASSERT_EQ(sched_setaffinity(0, sizeof mask, &mask), 0);
    f();
  }).join();
}

}  // namespace sluice::test
