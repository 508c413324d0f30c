// Failure case 37: a thread of the parent holds an array's lock when the process forks.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <mutex>
#include <thread>

#include "sluice/engine/detail/sanitizers.h"
#include "sluice/engine/errors.h"
#include "sluice/ndarray/array_mutex.h"

namespace sluice {
namespace {

/// What f returns in a forked child, or 128 + the signal that ended it: 14, where it hung.
int in_child(const std::function<int()>& f) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(20);
    ::_exit(f());
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

int refused(SmallMutex& mutex) {
  try {
    mutex.lock();
  } catch (const ForkedError&) {
    return 0;
  }
  return 1;
}

TEST(Fork, Case37AnArraysLockThatAThreadOfTheParentHolds) {
  SmallMutex mutex, free;
  std::thread other([&] { mutex.lock(); });  // it has ended when the child looks, as every thread has there
  other.join();
  EXPECT_EQ(in_child([&] {
              free.lock();
              free.lock();
              free.unlock();
              free.unlock();
              return refused(mutex);
            }),
            0);
}

#ifndef SLUICE_TSAN  // it lets no thread start after such a fork
TEST(Fork, Case37AThreadOfTheChildIsNotTakenForOneOfTheParent) {
  SmallMutex mutex;
  std::mutex ends;
  ends.lock();
  std::atomic<bool> held{false};
  std::thread other([&] {
    mutex.lock();
    held.store(true);
    held.notify_one();
    const std::lock_guard lock(ends);
    mutex.unlock();
  });
  held.wait(false);
  // A child's first thread gets the stack of one that it does not have, and its thread_locals where those were.
  EXPECT_EQ(in_child([&] {
              int result = 2;
              std::thread([&] { result = refused(mutex); }).join();
              return result;
            }),
            0);
  ends.unlock();
  other.join();
  mutex.lock();
  mutex.unlock();
}
#endif

TEST(Fork, Case37TheThreadThatForksStillHasItsLocks) {
  SmallMutex mutex;
  mutex.lock();
  EXPECT_EQ(in_child([&] {
              mutex.unlock();
              mutex.lock();
              mutex.unlock();
              return 0;
            }),
            0);
  mutex.unlock();
}

}  // namespace
}  // namespace sluice
