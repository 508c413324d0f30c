#include "sluice/nn/report/interrupt.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <string_view>

#include "sluice/engine/errors.h"

namespace sluice::nn {
namespace {

std::atomic<bool> in_use{false};
std::atomic<int> came{0};
static_assert(std::atomic<int>::is_always_lock_free, "a signal handler sets it");
struct sigaction before_int, before_term;

/// The system has put the default action back by now (SA_RESETHAND).
extern "C" void sluice_interrupted(int signal) {
  const int error = errno;
  int none = 0;
  came.compare_exchange_strong(none, signal);
  const std::string_view line = signal == SIGINT ? "\nSIGINT: ends after this step; a second one ends at once\n"
                                                 : "\nSIGTERM: ends after this step; a second one ends at once\n";
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, line.data(), line.size());
  errno = error;
}

}  // namespace

Interrupt::Interrupt() {
  if (in_use.exchange(true)) throw UsageError("[nn::Interrupt] there is one in this process");
  came = 0;
  struct sigaction action {};
  action.sa_handler = sluice_interrupted;
  action.sa_flags = SA_RESTART | static_cast<int>(SA_RESETHAND);
  ::sigemptyset(&action.sa_mask);
  // A shell starts what runs in the background with SIGINT ignored, so that Ctrl-C ends what is in front alone.
  ::sigaction(SIGINT, nullptr, &before_int);
  ::sigaction(SIGTERM, nullptr, &before_term);
  if (before_int.sa_handler != SIG_IGN) ::sigaction(SIGINT, &action, nullptr);
  if (before_term.sa_handler != SIG_IGN) ::sigaction(SIGTERM, &action, nullptr);
}

Interrupt::~Interrupt() {
  ::sigaction(SIGINT, &before_int, nullptr);
  ::sigaction(SIGTERM, &before_term, nullptr);
  in_use = false;
}

int Interrupt::signal() const { return came.load(); }

}  // namespace sluice::nn
