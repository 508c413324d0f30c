#include "sluice/nn/report/log.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
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
  std::optional<double> value{};
};

struct Row {
  std::int64_t step = 0;
  double time = 0;
  std::mutex mutex;  ///< guards the cells' values; never held for long
  std::vector<Cell> cells;
  std::vector<Ticket> reads;  ///< of its arrays

  void set(std::size_t cell, double number) {
    const std::lock_guard lock(mutex);
    if (!cells[cell].value) cells[cell].value = number;
  }
  bool has_all() {
    const std::lock_guard lock(mutex);
    return std::all_of(cells.begin(), cells.end(), [](const Cell& cell) { return cell.value.has_value(); });
  }
};

void make_folder_of(const std::filesystem::path& path) {
  if (path.has_parent_path()) std::filesystem::create_directories(path.parent_path());
}

}  // namespace

/// What the operations that read arrays share with the log. `mutex` guards all but what add() alone uses.
struct Log::State {
  State(std::string path, LogOptions with) : file(std::move(path)), options(std::move(with)), table(file) {}
  const std::string file;
  const LogOptions options;
  const pid_t process = ::getpid();
  std::int64_t last = -1;  ///< step of the last add()
  bool begun = false;
  Clock::time_point due{};  ///< of the last row that is written as soon as it is there

  std::mutex mutex;
  std::deque<std::shared_ptr<Row>> rows;  ///< that are not written
  detail::LogTable table;
  std::optional<detail::AppendFile> events;
  std::string added_events;  ///< that are not written
  std::exception_ptr failed;

  /// In a forked child nobody fills the rows, and the mutex may be held for good.
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
      if (!failed) failed = std::current_exception();
    }
  }
  /// A row that was due waits for an older one: whoever completes that writes.
  std::atomic<bool> overdue{false};
  /// Writes the rows that have all their numbers, from the oldest on. Called with the mutex held.
  void write_ready() noexcept;
  /// The same for a row that is due, and is complete.
  void write_due() noexcept {
    do {
      write_ready();
      overdue = !rows.empty();
    } while (!rows.empty() && rows.front()->has_all());
  }
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
    const double x = *cell.value;
    cells.emplace_back(cell.name, cell.of_float ? shortest(static_cast<float>(x)) : shortest(x));
  }
  attempt([&] { table.add(row.step, cells); });
  if (!events) return;
  std::vector<std::pair<std::string_view, float>> values;
  for (const Cell& cell : row.cells) values.emplace_back(cell.name, static_cast<float>(*cell.value));
  detail::add_scalar_event(added_events, row.time, row.step, values);
}

void Log::State::write_ready() noexcept {
  if (rows.empty() || !rows.front()->has_all()) return;
  for (; !rows.empty() && rows.front()->has_all(); rows.pop_front()) attempt([this] { add(*rows.front()); });
  attempt([this] { table.write(); });  // a few calls of the system for many rows of short steps
  attempt([this] {
    const std::string bytes = std::exchange(added_events, {});
    if (!bytes.empty()) events->put(bytes);
  });
}

namespace {

/// A number that an operation is to bring. If that never runs, as where a call does not come through, it is NaN.
template <class State>
class Awaited {
 public:
  Awaited(std::shared_ptr<State> state, std::shared_ptr<Row> row, std::size_t cell)
      : state_(std::move(state)), row_(std::move(row)), cell_(cell) {}
  ~Awaited() {
    if (!state_->of_parent()) row_->set(cell_, std::numeric_limits<double>::quiet_NaN());
  }
  Awaited(const Awaited&) = delete;
  Awaited& operator=(const Awaited&) = delete;

  void set(double number, bool due) {
    row_->set(cell_, number);
    if (!due && !state_->overdue) return;
    const std::lock_guard lock(state_->mutex);
    state_->write_due();
  }

 private:
  std::shared_ptr<State> state_;
  std::shared_ptr<Row> row_;
  std::size_t cell_;
};

/// Pushes what reads the row's arrays. Where it is written as soon as it is there, on the lane for files; else where
/// the arrays are, which wakes no other thread.
template <class State>
void read_arrays(const std::shared_ptr<State>& state, const std::shared_ptr<Row>& row, const Log::Values& values,
                 bool due, const std::source_location& where) {
  std::vector<std::shared_ptr<Awaited<State>>> awaited;  // of all, also where a push throws
  for (std::size_t i = 0; i < values.size(); ++i) {
    awaited.push_back(values[i].second.array() ? std::make_shared<Awaited<State>>(state, row, i) : nullptr);
  }
  const NoGrad off;
  PushOptions options{.name = "log", .on_poison = OnPoison::always};
  if (due) options.on = io();
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (!awaited[i]) continue;
    const NDArray x = gathered(*values[i].second.array(), where);
    const DeviceScope scope(x.device());
    const NDArray number = x.dtype() == DType::f32 ? x : x.to(DType::f64);
    NDArray here = number.detach();  // what is one number on the CPU already takes no further view or copy
    if (here.rank() != 0) here = here.reshape({});
    if (here.device() != cpu(0)) here = here.to(cpu(0));
    const auto read = [number = awaited[i], due](ArrayContext& c) {
      const bool good = !c.error(0) && !c.skip_reason();
      const TensorView& value = c.input(0);
      number->set(!good                       ? std::numeric_limits<double>::quiet_NaN()
                  : value.dtype == DType::f32 ? double{*value.as<float>()}
                                              : *value.as<double>(),
                  due);
    };
    row->reads.push_back(push_op(read, {here}, {}, options, where));
  }
}

template <class State>
std::vector<std::shared_ptr<Row>> unwritten(State& state) {
  const std::lock_guard lock(state.mutex);
  return {state.rows.begin(), state.rows.end()};
}

/// Waits until these rows, and those before them, are written.
template <class State>
void wait_for(State& state, const std::vector<std::shared_ptr<Row>>& rows) {
  for (const auto& row : rows) {
    for (const Ticket& ticket : row->reads) {
      try {
        ticket.wait();
      } catch (const Error&) {
      }
    }
    for (std::size_t i = 0; i < row->cells.size(); ++i) row->set(i, std::numeric_limits<double>::quiet_NaN());
    const std::lock_guard lock(state.mutex);
    state.write_ready();
  }
}

}  // namespace

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
    const std::lock_guard lock(state_->mutex);
    state_->begin();
  }
  const auto row = std::make_shared<Row>();
  row->step = step;
  row->time = wall_time();
  row->cells.reserve(values.size());
  for (const auto& [name, value] : values) {
    const bool of_float = value.array() && is_floating(value.array()->dtype()) && value.array()->dtype() != DType::f64;
    row->cells.push_back({name, of_float});
    if (!value.array()) row->cells.back().value = value.number();
  }
  state_->last = step;
  const auto now = Clock::now();
  const bool due = now - state_->due >= kPause;  // short steps would pay for a few calls of the system each
  if (due) state_->due = now;
  {
    const std::lock_guard lock(state_->mutex);
    state_->rows.push_back(row);
    if (due && row->has_all()) state_->write_due();
  }
  read_arrays(state_, row, values, due, where);
  state_->rethrow();
}

void Log::flush() {
  if (state_->of_parent()) throw UsageError("[nn::Log] the log belongs to the process that this one was forked from");
  wait_for(*state_, unwritten(*state_));
  state_->rethrow();
}

std::map<std::string, std::int64_t> Log::position() const { return {{"step", state_->last}}; }

std::function<void()> Log::output() const {
  if (!state_->begun || state_->of_parent()) return [] {};
  return [state = state_, rows = unwritten(*state_)] {
    wait_for(*state, rows);
    std::unique_lock lock(state->mutex);
    const std::shared_ptr<const detail::AppendFile> file = state->table.file();
    lock.unlock();  // a disk may take long, and add() does not wait
    try {
      if (file) file->sync();
    } catch (...) {  // the next add() says so: what asks has other things to save
      lock.lock();
      if (!state->failed) state->failed = std::current_exception();
    }
  };
}

void Log::set_position(const std::map<std::string, std::int64_t>& position) {
  if (state_->begun) throw UsageError("[nn::Log] a position for a log that was added to");
  const auto step = position.find("step");
  if (position.size() != 1 || step == position.end()) throw UsageError("[nn::Log] a position without \"step\"");
  state_->last = step->second;
}

}  // namespace sluice::nn
