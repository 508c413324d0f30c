// Runs a program as a person would from a shell, and keeps what it printed.
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <functional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace sluice::test {

struct Outcome {
  int status = -1;  ///< as a shell gives it: 128 + the signal's number where one ended the program
  bool timed_out = false;
  std::string out, err;
};

struct ProgramOptions {
  std::vector<std::pair<std::string, std::string>> environment;
  std::chrono::seconds limit{90};
  /// Called whenever the program has printed something; it may signal the process.
  std::function<void(pid_t, const std::string& out)> on_output{};
};

/// Standard input is empty, and the signals that ask a program to end do so, also where this process was started with
/// some of them ignored, as by a shell in the background. A program that runs past the limit is killed.
inline Outcome run_program(const std::string& path, const std::vector<std::string>& arguments,
                           const ProgramOptions& options = {}) {
  std::array<std::array<int, 2>, 2> pipes{};
  for (auto& p : pipes) {
    if (::pipe2(p.data(), O_CLOEXEC) != 0) throw std::runtime_error("pipe2");
  }
  std::vector<char*> argv{const_cast<char*>(path.c_str())};
  for (const std::string& a : arguments) argv.push_back(const_cast<char*>(a.c_str()));
  argv.push_back(nullptr);
  const pid_t child = ::fork();
  if (child < 0) throw std::runtime_error("fork");
  if (child == 0) {
    ::dup2(::open("/dev/null", O_RDONLY), 0);
    ::dup2(pipes[0][1], 1);
    ::dup2(pipes[1][1], 2);
    for (const int ends : {SIGINT, SIGQUIT, SIGTERM, SIGHUP}) ::signal(ends, SIG_DFL);
    for (const auto& [name, value] : options.environment) ::setenv(name.c_str(), value.c_str(), 1);
    ::execv(path.c_str(), argv.data());
    ::_exit(127);
  }
  Outcome outcome;
  const auto deadline = std::chrono::steady_clock::now() + options.limit;
  std::array<pollfd, 2> wanted{pollfd{pipes[0][0], POLLIN, 0}, pollfd{pipes[1][0], POLLIN, 0}};
  for (auto& p : pipes) ::close(p[1]);
  for (int open = 2; open > 0;) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now()).count();
    if (left <= 0 && !outcome.timed_out) {
      outcome.timed_out = true;
      ::kill(child, SIGKILL);
    }
    if (::poll(wanted.data(), wanted.size(), outcome.timed_out ? -1 : static_cast<int>(left)) < 0) continue;
    for (std::size_t i = 0; i < 2; ++i) {
      if (wanted[i].fd < 0 || wanted[i].revents == 0) continue;
      std::array<char, 4096> buffer;
      const ssize_t n = ::read(wanted[i].fd, buffer.data(), buffer.size());
      if (n <= 0) {
        ::close(wanted[i].fd);
        wanted[i].fd = -1;
        --open;
      } else {
        (i == 0 ? outcome.out : outcome.err).append(buffer.data(), static_cast<std::size_t>(n));
        if (i == 0 && options.on_output) options.on_output(child, outcome.out);
      }
    }
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  outcome.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return outcome;
}

}  // namespace sluice::test
