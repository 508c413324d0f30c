#include "sluice/nn/files/checkpoints.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <exception>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "sluice/ndarray/called.h"
#include "sluice/ndarray/dry_run.h"
#include "sluice/ndarray/files.h"
#include "sluice/ndarray/formats/safetensors_writer.h"
#include "sluice/ndarray/push.h"
#include "sluice/nn/files/pace.h"

namespace sluice::nn {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kBegin = "step-", kEnd = ".safetensors";

std::string name_of_step(std::int64_t step) {
  const std::string digits = std::to_string(step);
  return std::string(kBegin) + std::string(8 - std::min<std::size_t>(8, digits.size()), '0') + digits +
         std::string(kEnd);
}

/// The step of a file's name; nothing for other names.
std::optional<std::int64_t> step_of(const std::string& name) {
  if (!name.starts_with(kBegin) || !name.ends_with(kEnd) || name.size() <= kBegin.size() + kEnd.size()) return {};
  std::int64_t step = 0;
  const char* const end = name.data() + name.size() - kEnd.size();
  const auto [at, error] = std::from_chars(name.data() + kBegin.size(), end, step);
  if (error != std::errc() || at != end || name != name_of_step(step)) return {};
  return step;
}

/// Steps of a folder's files, the newest first.
std::vector<std::int64_t> steps_in(const std::string& folder) {
  std::vector<std::int64_t> steps;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    std::error_code none;
    if (!at->is_regular_file(none)) continue;
    if (const auto step = step_of(at->path().filename().string())) steps.push_back(*step);
  }
  if (error && error != std::errc::no_such_file_or_directory) {
    throw fs::filesystem_error("nn::Checkpoints", folder, error);
  }
  std::sort(steps.rbegin(), steps.rend());
  return steps;
}

/// Whether the file's header fits its bytes. A file that cannot be read for another reason is no broken one: throws
/// what `where` finds then.
bool is_whole(const std::string& path, const std::source_location& where) {
  std::FILE* const file = std::fopen(path.c_str(), "rb");
  if (!file) throw FormatError(path, std::string("cannot be opened: ") + std::strerror(errno));
  std::fclose(file);
  try {
    const MappedArrays mapped(path, where);
    return true;
  } catch (const FormatError&) {
    return false;
  }
}

/// What one file is made of. The arrays' memory lives as long as the operation.
struct Job {
  std::string path;
  std::vector<std::string> names;
  std::vector<NamedTensor> tensors;
  std::map<std::string, std::string> metadata;
  std::vector<std::function<void()>> waits;
  std::vector<std::string> old;  ///< files that go when this one is there
  std::exception_ptr failed;     ///< to be read when the operation is over
  detail::Pace pace;

  void write() {
    for (const auto& wait : waits) wait();
    formats::write_safetensors(path, tensors, metadata, [this] { pace.rest(); });
    std::error_code ignored;  // one that stays takes room, and is removed after the next file
    for (const std::string& file : old) fs::remove(file, ignored);
  }
  /// A file that fails is no failed operation, which would be in every wait_all() from then on.
  void write_and_answer(ArrayCompletion done) noexcept {
    try {
      write();
    } catch (...) {
      failed = std::current_exception();
    }
    waits.clear();  // they hold logs, which may go when the operation is over
    done.done();
  }
};

}  // namespace

struct Checkpoints::State {
  std::string folder;
  Saved items;
  CheckpointOptions options;
  const pid_t process = ::getpid();
  std::optional<Ticket> writing{};
  std::shared_ptr<Job> job{};  ///< of `writing`
  std::int64_t last = -1;      ///< step of the last file that was begun or loaded; -1: none
  bool begun = false;

  void check_process(const char* function) const {
    if (::getpid() == process) return;
    throw UsageError(std::string("[") + function +
                     "] the checkpoints belong to the process that this one was forked from");
  }
  /// Throws what went wrong with it.
  void wait() {
    if (!writing) return;
    check_process("nn::Checkpoints");
    const Ticket ticket = *std::exchange(writing, std::nullopt);
    const std::shared_ptr<Job> of = std::exchange(job, nullptr);
    of->pace.hurry();
    try {
      ticket.wait();
      if (of->failed) std::rethrow_exception(of->failed);
    } catch (...) {
      last = -1;
      throw;
    }
  }
  void check(std::int64_t step, const char* function, const std::source_location& where);
  void write(const std::string& path, std::vector<std::string> old, const char* function,
             const std::source_location& where);
  void save(std::int64_t step, const char* function, const std::source_location& where);
};

void Checkpoints::State::check(std::int64_t step, const char* function, const std::source_location& where) {
  const auto refuse = [&](const std::string& why) {
    throw UsageError(std::string("[") + function + "] " + to_string(where) + ": " + why);
  };
  check_process(function);
  if (step < 0) refuse("step " + std::to_string(step));
  if (begun || DryRun::current()) return;
  for (const std::int64_t other : steps_in(folder)) {
    if (other <= step) break;
    if (!is_whole(folder + "/" + name_of_step(other), where)) continue;  // resume() passed it over
    refuse("step " + std::to_string(step) + ", and " + folder + " has a file of step " + std::to_string(other) +
           ", which is another run's: call resume() to go on from there, or take another folder");
  }
  begun = true;
}

void Checkpoints::State::write(const std::string& path, std::vector<std::string> old, const char* function,
                               const std::source_location& where) {
  wait();
  if (sluice::detail::capturing()) {
    throw UsageError(std::string("[") + function + "] " + to_string(where) +
                     ": within a capture, which writes nothing");
  }
  fs::create_directories(folder);
  const auto next = std::make_shared<Job>();
  // The file is nobody's call: no interpreter sees its copies, and no sequence or cancellation of the step has them.
  const ScopeGuard guard;
  current_scope() = ScopeState();
  const NoGrad off;
  nn::detail::SavedFile file = nn::detail::saved_file(function, path, items);
  next->path = path;
  next->metadata = std::move(file.metadata);
  next->waits = std::move(file.waits);
  next->old = std::move(old);
  std::vector<NDArray> copies;
  for (auto& [name, x] : file.arrays) {
    const DeviceScope scope(x.device());
    const NDArray plain = x.detach();
    copies.push_back(plain.device() == cpu(0) ? plain.copy() : plain.to(cpu(0)));
    next->names.push_back(name);
  }
  if (copies.empty()) copies.push_back(empty({0}, DType::f32, cpu(0)));  // an operation has one at least
  const auto body = [next](ArrayContext& c, ArrayCompletion done) {
    for (std::size_t i = 0; i < next->names.size(); ++i) {
      const TensorView& x = c.input(static_cast<int>(i));
      const auto bytes = static_cast<std::size_t>(x.shape.count()) * size_of(x.dtype);
      next->tensors.push_back({next->names[i], x.dtype, x.shape, std::span(x.data, bytes)});
    }
    const auto answer = std::make_shared<ArrayCompletion>(std::move(done));
    try {
      std::thread([next, answer] {
        // The thread's own, on Linux: the steps that run meanwhile come first.
        ::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), 19);
        next->write_and_answer(std::move(*answer));
      }).detach();
    } catch (const std::system_error&) {  // no thread can be had
      next->failed = std::current_exception();
      answer->done();
    }
  };
  detail::hurry_at_exit();
  writing = push_op(body, copies, {}, {.on = io(), .name = "checkpoint"}, where);
  job = next;
}

void Checkpoints::State::save(std::int64_t step, const char* function, const std::source_location& where) {
  if (step == last || DryRun::current()) return;
  wait();
  std::vector<std::string> old;
  std::int64_t kept = 1;
  if (options.keep > 0) {
    for (const std::int64_t other : steps_in(folder)) {
      if (other < step && ++kept > options.keep) old.push_back(folder + "/" + name_of_step(other));
    }
  }
  write(folder + "/" + name_of_step(step), std::move(old), function, where);
  last = step;
}

Checkpoints::Checkpoints(std::string folder, Saved items, CheckpointOptions options)
    : state_(std::make_unique<State>(State{std::move(folder), std::move(items), options})) {
  const auto refuse = [](const std::string& why) { throw UsageError("[nn::Checkpoints] " + why); };
  if (state_->folder.empty()) refuse("the path of the folder is empty");
  state_->folder = fs::absolute(state_->folder).lexically_normal().string();  // a thread opens files in it later
  if (options.every < 1) refuse("a file every " + std::to_string(options.every) + " steps");
  if (options.keep < 0) refuse("keep " + std::to_string(options.keep) + " files");
}

Checkpoints::~Checkpoints() {
  if (::getpid() != state_->process) return;
  try {
    state_->wait();
  } catch (...) {  // a destructor says nothing
  }
}

std::string Checkpoints::resume(std::source_location where) {
  const sluice::detail::Called called("nn::Checkpoints::resume", where);
  state_->wait();
  std::string newest;  ///< of those that are broken
  for (const std::int64_t step : steps_in(state_->folder)) {
    const std::string path = state_->folder + "/" + name_of_step(step);
    if (!is_whole(path, where)) {
      if (newest.empty()) newest = path;
      continue;
    }
    load(path, state_->items, {}, where);
    state_->last = step;
    return path;
  }
  if (!newest.empty()) const MappedArrays says_why(newest, where);
  return {};
}

void Checkpoints::step(std::int64_t step, std::source_location where) {
  const sluice::detail::Called called("nn::Checkpoints::step", where);
  state_->check(step, "nn::Checkpoints::step", where);
  if (state_->writing && state_->writing->done()) state_->wait();
  if (step % state_->options.every == 0) state_->save(step, "nn::Checkpoints::step", where);
}

void Checkpoints::save(std::int64_t step, std::source_location where) {
  const sluice::detail::Called called("nn::Checkpoints::save", where);
  state_->check(step, "nn::Checkpoints::save", where);
  state_->wait();
  state_->save(step, "nn::Checkpoints::save", where);
  state_->wait();
}

void Checkpoints::best(std::source_location where) {
  const sluice::detail::Called called("nn::Checkpoints::best", where);
  state_->check_process("nn::Checkpoints::best");
  if (DryRun::current()) return;
  if (!state_->begun) state_->check(state_->last < 0 ? 0 : state_->last, "nn::Checkpoints::best", where);
  state_->write(state_->folder + "/best" + std::string(kEnd), {}, "nn::Checkpoints::best", where);
}

void Checkpoints::wait() { state_->wait(); }

}  // namespace sluice::nn
