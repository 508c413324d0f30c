// A process that ends while ops are in flight, in the way that its argument names. What was pushed is counted by an
// object that is older than the engines, and so goes after them.
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <thread>

#include <unistd.h>

#include "sluice/engine/engine.h"

namespace {
using namespace sluice;

struct Tally {
  ~Tally() {
    std::printf("ran %d of %d\n", ran.load(), pushed);
    std::fflush(stdout);
  }
  std::atomic<int> ran{0};
  int pushed = 0;
} tally;

/// Ops that take 40 ms in all, of which most are in flight when this returns.
Variable keep_busy(Engine& engine) {
  const Variable v = engine.variable();
  for (int i = 0; i < 200; ++i) {
    engine.push(
        [] {
          const auto end = std::chrono::steady_clock::now() + std::chrono::microseconds(200);
          while (std::chrono::steady_clock::now() < end) {
          }
          tally.ran.fetch_add(1);
        },
        {update(v)});
    ++tally.pushed;
  }
  return v;
}

Engine& own() {
  static Engine engine({.mode_given = true, .threads = 2});
  return engine;
}

/// Uses the engine when it goes.
struct AtItsEnd {
  explicit AtItsEnd(const char* n) : name(n) {}
  void use() { v = keep_busy(Engine::instance()); }
  ~AtItsEnd() {
    const char* how = "pushed";
    try {
      Engine::instance().push([] { tally.ran.fetch_add(1); }, {update(v)});
      ++tally.pushed;
    } catch (const StoppedError&) {
      how = "refused";
    }
    Engine::instance().wait(v);
    std::printf("%s: %s\n", name, how);
  }
  const char* name;
  Variable v;
};

void end_by_signal(int) {
  own().stop();
  std::_Exit(tally.ran == tally.pushed ? 0 : 3);
}
}  // namespace

int main(int argc, char** argv) {
  const std::string_view how = argc > 1 ? argv[1] : "";
  if (how == "statics") {
    static AtItsEnd before("before");
    before.use();  // the engine's exit handler is younger than the object, and so runs first
    static AtItsEnd late("late");
    late.use();
    return 0;
  }
  if (how == "handler") {  // the signal finds this thread outside of the engine, and no other
    sigset_t term, before;
    sigemptyset(&term);
    sigaddset(&term, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &term, &before);
    std::signal(SIGTERM, end_by_signal);
    keep_busy(own());
    std::puts("busy");
    std::fflush(stdout);
    for (;;) sigsuspend(&before);
  }
  if (how == "sigwait") {
    sigset_t term;
    sigemptyset(&term);
    sigaddset(&term, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &term, nullptr);  // for all threads to come
  }
  keep_busy(Engine::instance());
  const Variable v = keep_busy(own());
  if (how == "return") return 0;
  if (how == "exit") std::exit(0);
  if (how == "thread") {
    std::thread([] { std::exit(0); }).detach();
    for (;;) ::pause();
  }
  if (how == "waiting") {  // the main thread waits while another ends the process
    std::thread([] { std::exit(0); }).detach();
    own().wait(v);
    for (;;) ::pause();
  }
  if (how == "op") {
    own().push([] { std::exit(7); }, {});
    for (;;) ::pause();
  }
  if (how == "term") {
    std::puts("busy");
    std::fflush(stdout);
    for (;;) ::pause();
  }
  if (how == "sigwait") {
    sigset_t term;
    sigemptyset(&term);
    sigaddset(&term, SIGTERM);
    ::kill(::getpid(), SIGTERM);
    int signal = 0;
    sigwait(&term, &signal);
    return own().stop() && Engine::instance().stop() ? 0 : 3;
  }
  return 2;
}
