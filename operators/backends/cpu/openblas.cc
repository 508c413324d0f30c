#include "sluice/operators/backends/cpu/openblas.h"

#include <cblas.h>
#include <pthread.h>
#include <time.h>

#include <mutex>

namespace sluice::cpu_backend {
namespace {

constinit std::mutex mutex;  // guards what follows
pthread_cond_t all_left = PTHREAD_COND_INITIALIZER, forked = PTHREAD_COND_INITIALIZER;
int inside = 0;    ///< calls
int programs = 1;  ///< the number to put back; 1: none
int forks = 0;     ///< that wait for the calls, and that calls wait for

// Over a fork the mutex is held, and before it no call begins and for up to a second those that run are waited for: a
// child whose parent has a thread inside finds OpenBLAS with 1 thread, and maybe with a lock of its own held for ever.
// A call takes nothing that is ours, so the wait needs nothing that another fork handler holds.
void before_fork() {
  timespec limit{};
  clock_gettime(CLOCK_MONOTONIC, &limit);
  ++limit.tv_sec;
  mutex.lock();
  ++forks;
  while (inside > 0 && pthread_cond_clockwait(&all_left, mutex.native_handle(), CLOCK_MONOTONIC, &limit) == 0) {
  }
}
void in_parent() {
  if (--forks == 0) pthread_cond_broadcast(&forked);
  mutex.unlock();
}
void in_child() {
  // The threads that were inside are not here. The next call puts the program's number back: OpenBLAS starts threads
  // when it is told here, which a child that calls exec has no use for.
  inside = forks = 0;
  all_left = forked = PTHREAD_COND_INITIALIZER;
  mutex.unlock();
}
[[maybe_unused]] const int handlers = pthread_atfork(before_fork, in_parent, in_child);

}  // namespace

InOpenBlas::InOpenBlas() {
  const std::lock_guard lock(mutex);
  while (forks > 0) pthread_cond_wait(&forked, mutex.native_handle());
  ++inside;
  if (const int now = openblas_get_num_threads(); now != 1) {
    programs = now;
    openblas_set_num_threads(1);
  }
}

InOpenBlas::~InOpenBlas() {
  const std::lock_guard lock(mutex);
  if (--inside > 0) return;
  if (programs != 1 && openblas_get_num_threads() == 1) openblas_set_num_threads(programs);
  programs = 1;
  if (forks > 0) pthread_cond_broadcast(&all_left);
}

}  // namespace sluice::cpu_backend
