#include "sluice/nn/report/log.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <deque>
#include <exception>
#include <filesystem>
#include <limits>
#include <mutex>
#include <optional>
#include <string_view>

#include "sluice/ndarray/called.h"
#include "sluice/ndarray/dry_run.h"
#include "sluice/ndarray/formats/file_io.h"
#include "sluice/ndarray/push.h"
#include "sluice/nn/report/append_file.h"
#include "sluice/nn/report/event_file.h"
#include "sluice/nn/report/log_table.h"
#include "sluice/operators/operators.h"
#include "sluice/operators/placed.h"

namespace sluice::nn {
namespace {

constexpr const char* kName = "nn::Log::add";

using Clock = std::chrono::steady_clock;
constexpr std::chrono::milliseconds kPause(50);
constexpr std::size_t kMost = 512;  ///< rows, and arrays, of an operation

double wall_time() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

/// The fewest digits that give the number again; whole numbers without an exponent.
template <class T>
std::string shortest(T x) {
  if (std::isnan(x)) return "nan";
  if (std::abs(x) < T(1e15) && x == std::trunc(x)) return std::to_string(static_cast<std::int64_t>(x));
  char text[64];
  return std::string(text, std::to_chars(text, text + sizeof text, x).ptr);
}

struct Cell {
  std::string name;
  bool of_float = false;  ///< the number is one of f32
  double value = std::numeric_limits<double>::quiet_NaN();
  NDArray array{};  ///< the value is still to be read from it, if it is there
};

struct Row {
  std::int64_t step = 0;
  double time = 0;
  std::vector<Cell> cells;
};

/// Rows that are written together, and one operation that reads their arrays.
struct Batch {
  std::vector<Row> rows;
  Ticket read;
  bool pushed = false;  ///< there is that operation
  bool done = false;    ///< all values are numbers; this and the cells are guarded by the log's mutex

  template <class F>
  void for_each_array(const F& f) {
    for (Row& row : rows) {
      for (Cell& cell : row.cells) {
        if (cell.array.defined()) f(cell);
      }
    }
  }
};

void make_folder_of(const std::filesystem::path& path) {
  if (path.has_parent_path()) std::filesystem::create_directories(path.parent_path());
}

}  // namespace

/// What the operations that read arrays share with the log.
struct Log::State {
  State(std::string path, LogOptions with) : file(std::move(path)), options(std::move(with)), table(file) {}
  const std::string file;
  const LogOptions options;
  const pid_t process = ::getpid();

  // The program's thread.
  std::int64_t last = -1;  ///< step of the last add()
  bool begun = false;
  Clock::time_point due{};         ///< of the last row that was handed over at once
  std::vector<Row> pending;        ///< rows that are not handed over
  std::size_t arrays = 0;          ///< of the pending rows
  const Engine* engine = nullptr;  ///< of these arrays; null: there are none
  Ticket last_read;                ///< of the last batch that has an operation
  bool any_read = false;

  std::mutex mutex;                            ///< guards these; never held for long
  std::deque<std::shared_ptr<Batch>> batches;  ///< that are not written
  std::exception_ptr failed;

  std::mutex writing;  ///< guards these; taken before `mutex`. A disk may take long, and add() does not wait
  detail::LogTable table;
  std::optional<detail::AppendFile> events;
  std::string added_events;  ///< that are not written

  /// In a forked child nobody reads the arrays, and the mutexes may be held for good.
  bool of_parent() const { return ::getpid() != process; }
  void begin();
  void begin_events();
  /// Adds a row to what is written next.
  void add(const Row& row);
  /// What goes wrong is said by the next call of the program.
  template <class F>
  void attempt(const F& f) noexcept {
    try {
      f();
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (!failed) failed = std::current_exception();
    }
  }
  /// Writes the batches that have all their numbers, from the oldest on. Without `wait`, somebody who writes already is
  /// left to do it.
  void write_ready(bool wait) noexcept;
  std::shared_ptr<Batch> next_ready();
  /// Makes a batch of the pending rows, and has it read and written. Where nobody can, they stay pending.
  void hand_over(const std::shared_ptr<State>& self, const std::source_location& where) noexcept;
  /// The numbers of a batch's arrays are these, unless they are known.
  void settle(Batch& batch, const std::vector<double>& numbers) noexcept;
  /// Batches of all rows that were added and are not written.
  std::vector<std::shared_ptr<Batch>> unwritten(const std::shared_ptr<State>& self);
  /// Waits until these are written.
  void wait_for(const std::vector<std::shared_ptr<Batch>>& some);
  void rethrow() {
    const std::lock_guard lock(mutex);
    if (failed) std::rethrow_exception(std::exchange(failed, nullptr));
  }
};

void Log::State::begin() {
  make_folder_of(file);
  if (!options.tensorboard.empty() && !events) begin_events();
  last < 0 ? table.begin() : table.go_on_from(last);
  begun = true;
}

void Log::State::begin_events() {
  std::filesystem::create_directories(options.tensorboard);
  char host[256] = "localhost";
  ::gethostname(host, sizeof host - 1);
  const double now = wall_time();
  const std::string name = options.tensorboard + "/events.out.tfevents." + std::to_string(static_cast<long long>(now)) +
                           "." + host + "." + std::to_string(process);
  std::string path = name;
  for (int n = 1; std::filesystem::exists(path); ++n) path = name + "." + std::to_string(n);
  events.emplace(path);
  // What an earlier run has in the folder from this step on does not count.
  events->put(detail::first_event(now) + detail::start_event(now, last + 1));
}

void Log::State::add(const Row& row) {
  detail::LogTable::Cells cells;
  for (const Cell& cell : row.cells) {
    const double x = cell.value;
    cells.emplace_back(cell.name, cell.of_float ? shortest(static_cast<float>(x)) : shortest(x));
  }
  attempt([&] { table.add(row.step, cells); });
  if (!events) return;
  std::vector<std::pair<std::string_view, float>> values;
  for (const Cell& cell : row.cells) values.emplace_back(cell.name, static_cast<float>(cell.value));
  detail::add_scalar_event(added_events, row.time, row.step, values);
}

std::shared_ptr<Batch> Log::State::next_ready() {
  const std::lock_guard lock(mutex);
  return batches.empty() || !batches.front()->done ? nullptr : batches.front();
}

void Log::State::write_ready(bool wait) noexcept {
  do {  // again, for what came while somebody else wrote
    std::unique_lock writes(writing, std::defer_lock);
    if (wait) {
      writes.lock();
    } else if (!writes.try_lock()) {
      return;
    }
    wait = false;
    while (const std::shared_ptr<Batch> batch = next_ready()) {
      for (const Row& row : batch->rows) attempt([&] { add(row); });
      const std::lock_guard lock(mutex);
      batches.pop_front();
    }
    attempt([this] { table.write(); });  // a few calls of the system for many rows of short steps
    attempt([this] {
      const std::string bytes = std::exchange(added_events, {});
      if (!bytes.empty()) events->put(bytes);
    });
  } while (next_ready());
}

namespace {

/// For what is nobody's call: rows of several scopes, of which any may be cancelled, are read together.
class Apart {
  struct NoScope : ScopeGuard {
    NoScope() { current_scope() = ScopeState(); }
  };
  const NoScope scope_;
  const NoGrad off_;
  const sluice::detail::OutsideCapture outside_;
};

/// The value that the array has now, of f32 or f64 and on the CPU, for when the row is written. What is one number, and
/// a little more, is kept as it is: a write to it makes another. Of a larger array, that would be a copy of the whole.
NDArray kept(const NDArray& value, const std::source_location& where) {
  constexpr std::size_t little = 4096;
  const Apart apart;
  const NDArray x = gathered(value, where);
  Array& array = x.in_memory(kName, where);
  const DeviceScope scope(x.device());
  if (x.dtype() == DType::f32 || x.dtype() == DType::f64) {
    if (x.device() != cpu(0)) return x.to(cpu(0));
    const auto is_large = [&] {
      const std::lock_guard lock(array.mutex());
      return array.stays() || array.version()->buffer().bytes() > little;
    };
    return is_large() ? x.copy() : x.detach();
  }
  const NDArray number = x.to(DType::f64);
  return x.device() == cpu(0) ? number : number.to(cpu(0));
}

double number_of(const TensorView& x) { return x.dtype == DType::f32 ? double{*x.as<float>()} : *x.as<double>(); }

/// NaN for a value that is poisoned.
double number_of(const NDArray& x) {
  try {
    return x.dtype() == DType::f32 ? double{x.item<float>()} : x.item<double>();
  } catch (const std::exception&) {
    return std::numeric_limits<double>::quiet_NaN();
  }
}

}  // namespace

void Log::State::hand_over(const std::shared_ptr<State>& self, const std::source_location& where) noexcept {
  if (pending.empty() || DryRun::current()) return;
  std::shared_ptr<Batch> batch;
  try {
    batch = std::make_shared<Batch>();
    batch->rows.swap(pending);  // at once, so that below they are swapped back whatever failed
    std::vector<NDArray> all;
    all.reserve(arrays);
    batch->for_each_array([&](const Cell& cell) { all.push_back(cell.array); });
    {
      const std::lock_guard lock(mutex);
      batches.push_back(batch);
    }
    const auto read = [self, batch](ArrayContext& c) {
      std::vector<double> numbers;
      for (int i = 0; i < c.inputs(); ++i) {
        const bool good = !c.error(i) && !c.skip_reason();
        numbers.push_back(good ? number_of(c.input(i)) : std::numeric_limits<double>::quiet_NaN());
      }
      self->settle(*batch, numbers);
      self->write_ready(false);
    };
    if (!all.empty()) {
      const Apart apart;
      last_read = batch->read =
          push_op(read, all, {}, {.on = io(), .name = "log", .on_poison = OnPoison::always}, where);
      any_read = batch->pushed = true;
    } else {
      settle(*batch, {});
      write_ready(false);
    }
    arrays = 0;
    engine = nullptr;
  } catch (...) {  // as of an engine that is stopped: later, or by wait_for()
    if (!batch) return;
    const std::lock_guard lock(mutex);
    if (!batches.empty() && batches.back() == batch) batches.pop_back();
    batch->rows.swap(pending);
  }
}

void Log::State::settle(Batch& batch, const std::vector<double>& numbers) noexcept {
  std::vector<NDArray> read;  // they go when the lock is released
  const std::lock_guard lock(mutex);
  if (batch.done) return;
  std::size_t i = 0;
  batch.for_each_array([&](Cell& cell) {
    cell.value = numbers[i++];
    read.push_back(std::exchange(cell.array, {}));
  });
  batch.done = true;
}

std::vector<std::shared_ptr<Batch>> Log::State::unwritten(const std::shared_ptr<State>& self) {
  hand_over(self, std::source_location::current());
  const std::lock_guard lock(mutex);
  if (!pending.empty()) {  // no operation reads them
    batches.push_back(std::make_shared<Batch>());
    batches.back()->rows.swap(pending);
    arrays = 0;
    engine = nullptr;
  }
  return {batches.begin(), batches.end()};
}

void Log::State::wait_for(const std::vector<std::shared_ptr<Batch>>& some) {
  const Apart apart;
  for (const auto& batch : some) {
    try {
      if (batch->pushed) batch->read.wait();
    } catch (const std::exception&) {
    }
    std::vector<NDArray> unread;  // no operation was pushed, or it was dropped
    {
      const std::lock_guard lock(mutex);
      batch->for_each_array([&](const Cell& cell) { unread.push_back(cell.array); });
    }
    std::vector<double> numbers;
    for (const NDArray& x : unread) numbers.push_back(number_of(x));
    settle(*batch, numbers);
  }
  write_ready(true);
}

Log::Log(std::string path, LogOptions options) {
  if (path.empty()) throw UsageError("[nn::Log] the path is empty");
  state_ = std::make_shared<State>(std::move(path), std::move(options));
}

Log::~Log() {
  if (state_->of_parent()) return;
  try {
    flush();
  } catch (...) {  // a destructor says nothing
  }
}

void Log::add(std::int64_t step, const Values& values, std::source_location where) {
  const sluice::detail::Called called(kName, where);
  const auto refuse = [&](const std::string& why) {
    throw UsageError(std::string("[") + kName + "] " + to_string(where) + ": " + why);
  };
  if (state_->of_parent()) refuse("the log belongs to the process that this one was forked from");
  if (step < 0) refuse("step " + std::to_string(step));
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto& [name, value] = values[i];
    const bool control = std::ranges::any_of(name, [](char c) { return static_cast<unsigned char>(c) < ' '; });
    if (name.empty() || name == "step" || control) refuse("a value may not be called '" + name + "'");
    for (std::size_t k = 0; k < i; ++k) {
      if (values[k].first == name) refuse("two values are called '" + name + "'");
    }
    if (!value.array()) continue;
    value.array()->checked(kName, where);
    if (value.array()->count() == 1) continue;
    throw ArrayError(kName, where, "'" + name + "' is " + to_string(value.array()->shape()) + ", not one element");
  }
  if (DryRun::current()) return;  // there are no numbers
  state_->rethrow();
  if (!state_->begun) {
    const std::lock_guard lock(state_->writing);
    state_->begin();
  }
  Row row{step, wall_time(), {}};
  row.cells.reserve(values.size());
  const Engine* engine = state_->engine;
  std::size_t arrays = 0;
  for (const auto& [name, value] : values) {
    if (const NDArray* array = value.array()) {
      const bool of_float = is_floating(array->dtype()) && array->dtype() != DType::f64;
      row.cells.push_back({name, of_float, 0, kept(*array, where)});
      engine = &row.cells.back().array.engine();
      ++arrays;
    } else {
      row.cells.push_back({name, false, value.number()});
    }
  }
  // One operation reads arrays of one engine, and not too many.
  const bool apart = arrays > 0 && state_->engine && engine != state_->engine;
  if (apart || state_->arrays + arrays > kMost) state_->hand_over(state_, where);
  state_->pending.push_back(std::move(row));
  state_->arrays += arrays;
  state_->engine = engine;
  state_->last = step;
  // Short steps would pay for an operation, and for a few calls of the system, each.
  const auto now = Clock::now();
  const bool due = now - state_->due >= kPause;
  if (due) state_->due = now;
  if (due || state_->pending.size() >= kMost) state_->hand_over(state_, where);
  state_->rethrow();
}

void Log::flush() {
  if (state_->of_parent()) throw UsageError("[nn::Log] the log belongs to the process that this one was forked from");
  state_->wait_for(state_->unwritten(state_));
  try {
    if (state_->any_read) state_->last_read.wait();  // it holds the files, so that no other log opens them
  } catch (const std::exception&) {
  }
  state_->rethrow();
}

std::map<std::string, std::int64_t> Log::position() const { return {{"step", state_->last}}; }

std::function<void()> Log::output() const {
  if (!state_->begun || state_->of_parent()) return [] {};
  return [state = state_, some = state_->unwritten(state_)] {
    state->wait_for(some);
    std::unique_lock lock(state->writing);
    const std::shared_ptr<const detail::AppendFile> file = state->table.file();
    lock.unlock();
    // What goes wrong is said by the next add(): what asks has other things to save.
    state->attempt([&] {
      if (file) file->sync();
    });
  };
}

void Log::set_position(const std::map<std::string, std::int64_t>& position) {
  if (state_->begun) throw UsageError("[nn::Log] a position for a log that was added to");
  const auto step = position.find("step");
  if (position.size() != 1 || step == position.end()) throw UsageError("[nn::Log] a position without \"step\"");
  state_->last = step->second;
}

}  // namespace sluice::nn
