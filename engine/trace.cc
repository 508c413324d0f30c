// Traces as Chrome/Perfetto JSON.
#include "sluice/engine/trace.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <concepts>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <map>
#include <numeric>
#include <stdexcept>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "sluice/engine/stream.h"

namespace sluice {
namespace {

/// Takes the text of a trace, and passes it on in large pieces.
class Out {
 public:
  using Sink = void (*)(void* to, std::string_view text);
  Out(void* to, Sink sink) : to_(to), sink_(sink) { buffer_.reserve(kPiece + 4096); }
  Out(const Out&) = delete;
  Out& operator=(const Out&) = delete;
  Out& operator<<(std::string_view text) {
    buffer_ += text;
    if (buffer_.size() >= kPiece) flush();
    return *this;
  }
  template <std::integral T>
  Out& operator<<(T number) {
    char text[24];
    return *this << std::string_view(text, std::to_chars(text, std::end(text), number).ptr);
  }
  /// Nanoseconds as microseconds.
  Out& micros(std::int64_t ns) {
    const auto size = static_cast<std::uint64_t>(ns < 0 ? -ns : ns);
    const auto digit = [](std::uint64_t n) { return static_cast<char>('0' + n % 10); };
    const char rest[] = {'.', digit(size / 100), digit(size / 10), digit(size)};
    if (ns < 0) *this << "-";
    return *this << size / 1000 << std::string_view(rest, sizeof rest);
  }
  /// As the inside of a JSON string.
  Out& escaped(const char* text);
  /// The next element of the list.
  Out& element() { return *this << (std::exchange(first_, false) ? "" : ",\n"); }
  bool any() const { return !first_; }
  void flush() {
    sink_(to_, buffer_);
    buffer_.clear();
  }

 private:
  static constexpr std::size_t kPiece = std::size_t{1} << 16;
  void* const to_;
  const Sink sink_;
  std::string buffer_;
  bool first_ = true;
};

/// How many bytes the UTF-8 character at `s` has, which a zero ends; 0 where there is none.
std::size_t utf8_length(const unsigned char* s) {
  const auto follow = [s](std::size_t count, unsigned low = 0x80, unsigned high = 0xbf) {
    if (s[1] < low || s[1] > high) return std::size_t{0};
    for (std::size_t i = 2; i <= count; ++i)
      if (s[i] < 0x80 || s[i] > 0xbf) return std::size_t{0};
    return count + 1;
  };
  if (s[0] < 0x80) return 1;
  if (s[0] < 0xc2) return 0;  // in the middle of one, or longer than need be
  if (s[0] < 0xe0) return follow(1);
  if (s[0] < 0xf0) return follow(2, s[0] == 0xe0 ? 0xa0 : 0x80, s[0] == 0xed ? 0x9f : 0xbf);  // no surrogates
  if (s[0] < 0xf5) return follow(3, s[0] == 0xf0 ? 0x90 : 0x80, s[0] == 0xf4 ? 0x8f : 0xbf);
  return 0;
}

Out& Out::escaped(const char* text) {
  if (!text) return *this;
  while (*text) {
    const auto* const at = reinterpret_cast<const unsigned char*>(text);
    const std::size_t length = utf8_length(at);
    if (length == 0) {
      *this << "\\ufffd";
    } else if (*at == '"' || *at == '\\') {
      *this << "\\" << std::string_view(text, 1);
    } else if (*at < 0x20) {
      char code[8];
      std::snprintf(code, sizeof code, "\\u%04x", unsigned{*at});
      *this << code;
    } else {
      *this << std::string_view(text, length);
    }
    text += std::max<std::size_t>(length, 1);
  }
  return *this;
}

constexpr const char* kLaneNames[] = {"compute", "copy in", "copy out", "copy peer", "io"};

std::string lane_name(const TraceEvent& e) {
  return e.lane == LaneKind::io ? "io" : to_string(e.device) + " " + kLaneNames[static_cast<int>(e.lane)];
}

/// Places of the events in the order in which they began. Whatever orders two ops by a variable lets the second begin
/// (or be issued) only after the first has: so this is, for any variable and any two ops that it orders, the order of
/// their pushes, also where several threads pushed at the same instant. A number taken at the push would not be: the
/// place in the chain is taken later, and in another order.
std::vector<std::size_t> by_start(std::span<const TraceEvent> events) {
  std::vector<std::size_t> order(events.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  const auto before = [](const TraceEvent& x, const TraceEvent& y) {
    return std::tie(x.start, x.end, x.pushed) < std::tie(y.start, y.end, y.pushed);
  };
  if (std::is_sorted(events.begin(), events.end(), before)) return order;  // as stop_trace gives them
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return before(events[a], events[b]); });
  return order;
}

bool has_device_times(const TraceEvent& e) { return e.device_end != 0; }

/// When an op's work was done, as far as it is known: by its device, or by its body.
DeviceTimes work_of(const TraceEvent& e) {
  return has_device_times(e) ? DeviceTimes{e.device_start, e.device_end} : DeviceTimes{e.start, e.end};
}

/// A row for each device, lane and thread, and one for each lane whose device gives times; more where slices overlap.
class Rows {
 public:
  Rows(std::span<const TraceEvent> events, const std::vector<std::size_t>& order) : body_(events.size()) {
    for (const std::size_t i : order) {
      const TraceEvent& e = events[i];
      body_[i] = place({static_cast<int>(e.device.kind), e.device.index, static_cast<int>(e.lane), false, e.thread},
                       {e.start, e.end}, [&] { return lane_name(e) + ", thread " + std::to_string(e.thread); });
    }
    std::vector<std::size_t> on_device;
    for (const std::size_t i : order)
      if (has_device_times(events[i])) on_device.push_back(i);
    if (!on_device.empty()) device_.resize(events.size());
    std::stable_sort(on_device.begin(), on_device.end(),
                     [&](std::size_t a, std::size_t b) { return events[a].device_start < events[b].device_start; });
    for (const std::size_t i : on_device) {
      const TraceEvent& e = events[i];
      device_[i] = place({static_cast<int>(e.device.kind), e.device.index, static_cast<int>(e.lane), true, 0},
                         work_of(e), [&] { return lane_name(e) + " (device)"; });
    }
    row_.resize(static_cast<std::size_t>(found_));
    for (auto& [unused, parts] : rows_)
      for (Part& part : parts) {
        names_.push_back(std::move(part.name));
        row_[static_cast<std::size_t>(part.number)] = static_cast<int>(names_.size());
      }
    rows_.clear();
  }
  /// Names of rows 1, 2, ...
  const std::vector<std::string>& names() const { return names_; }
  int body(std::size_t event) const { return row_[static_cast<std::size_t>(body_[event])]; }
  /// Of an op with device times.
  int device(std::size_t event) const { return row_[static_cast<std::size_t>(device_[event])]; }

 private:
  using Key = std::tuple<int, int, int, bool, std::uint32_t>;
  struct Part {
    int number;                      ///< in the order in which they were found
    std::vector<std::int64_t> ends;  ///< of what is open
    std::string name;
  };
  /// The number of the row in which the slice overlaps no other, or lies within it.
  template <class Name>
  int place(const Key& key, DeviceTimes slice, Name name) {
    auto& parts = rows_[key];
    std::size_t k = 0;
    for (;; ++k) {
      if (k == parts.size()) parts.push_back({found_++, {}, name() + (k ? " (" + std::to_string(k + 1) + ")" : "")});
      auto& ends = parts[k].ends;
      while (!ends.empty() && ends.back() <= slice.begin) ends.pop_back();
      if (ends.empty() || slice.end <= ends.back()) break;
    }
    parts[k].ends.push_back(slice.end);
    return parts[k].number;
  }

  std::map<Key, std::vector<Part>> rows_;
  int found_ = 0;
  std::vector<std::string> names_;
  std::vector<int> body_, device_, row_;
};

/// A number over time: how many have begun and not ended.
class Counter {
 public:
  void add(std::int64_t from, std::int64_t to) {
    begins_.push_back(from);
    ends_.push_back(std::max(from, to));
  }
  /// Its changes.
  void write(Out& out, const std::string& name, std::int64_t zero) {
    std::sort(begins_.begin(), begins_.end());
    std::sort(ends_.begin(), ends_.end());
    std::int64_t value = 0;
    // No more end than have begun, so whatever is next to happen is in `ends_`, or before it in `begins_`.
    for (std::size_t b = 0, e = 0; e < ends_.size();) {
      const std::int64_t time = b < begins_.size() ? std::min(begins_[b], ends_[e]) : ends_[e], before = value;
      for (; b < begins_.size() && begins_[b] == time; ++b) ++value;
      for (; e < ends_.size() && ends_[e] == time; ++e) --value;
      if (value == before) continue;
      out.element() << "{\"ph\": \"C\", \"name\": \"" << name << "\", \"pid\": 1, \"ts\": ";
      out.micros(time - zero) << ", \"args\": {\"ops\": " << value << "}}";
    }
  }

 private:
  std::vector<std::int64_t> begins_, ends_;
};

/// A slice up to the arguments that differ.
void begin_slice(Out& out, const TraceEvent& e, int row, DeviceTimes times, std::int64_t zero) {
  out.element() << "{\"ph\": \"X\", \"name\": \"";
  out.escaped(e.name) << "\", \"pid\": 1, \"tid\": " << row << ", \"ts\": ";
  out.micros(times.begin - zero) << ", \"dur\": ";
  out.micros(times.end - times.begin) << ", \"args\": {\"op\": " << e.id << ", \"pushed at\": \"";
  out.escaped(e.file) << ":" << e.line << "\"";
}

void end_slice(Out& out, const TraceEvent& e) {
  if (e.layer && *e.layer) (out << ", \"layer\": \"").escaped(e.layer) << "\"";
  out << (e.failed ? ", \"failed\": true}}" : "}}");
}

void write_slices(Out& out, const TraceEvent& e, std::size_t event, const Rows& rows, std::int64_t zero) {
  begin_slice(out, e, rows.body(event), {e.start, e.end}, zero);
  out << ", \"waited us\": ";
  out.micros(e.ready - e.pushed) << ", \"queued us\": ";
  out.micros(e.start - e.ready);
  end_slice(out, e);
  if (!has_device_times(e)) return;
  begin_slice(out, e, rows.device(event), work_of(e), zero);
  out << ", \"issued before us\": ";
  out.micros(e.device_start - e.start);
  end_slice(out, e);
}

void write_arrow(Out& out, std::span<const TraceEvent> events, const TraceDependency& d, const Rows& rows,
                 std::size_t number, std::int64_t zero) {
  const TraceEvent &before = events[d.before], &after = events[d.after];
  const TraceAccess& access = after.accesses[d.access];
  const auto end = [&](const char* phase, int row) -> Out& {
    out.element() << "{\"ph\": " << phase << ", \"cat\": \"dependency\", \"name\": \"";
    if (access.name.empty()) {
      out << "variable " << access.variable;
    } else {
      out.escaped(access.name.c_str());
    }
    return out << "\", \"id\": " << number << ", \"pid\": 1, \"tid\": " << row << ", \"ts\": ";
  };
  // Both ends must lie within their slices, and the tail not behind the head: without device times, a stream's op may
  // begin before the one that it waits for on the device has ended; and two clocks may disagree a little.
  const DeviceTimes from = work_of(before), to = work_of(after);
  const std::int64_t tail = std::max(from.begin, std::min(from.end - 1, to.begin));
  const std::int64_t head = std::max(to.begin, std::min(to.end, tail));
  const auto row = [&](std::size_t event) {
    return has_device_times(events[event]) ? rows.device(event) : rows.body(event);
  };
  end("\"s\"", row(d.before)).micros(tail - zero) << "}";
  end("\"f\", \"bp\": \"e\"", row(d.after)).micros(head - zero) << "}";
}

/// Who used a variable last.
struct Uses {
  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);
  std::size_t writer = kNone;
  std::vector<std::size_t> readers;  ///< since
};

/// Calls f with each dependency, in order of `after`.
template <class F>
void each_dependency(std::span<const TraceEvent> events, const std::vector<std::size_t>& order, F&& f) {
  constexpr std::size_t none = Uses::kNone;
  std::unordered_map<std::uint32_t, Uses> variables;
  std::vector<std::size_t> told(events.size(), none);  ///< of which event it was told last that it follows this one
  for (const std::size_t i : order)
    for (std::size_t k = 0; k < events[i].accesses.size(); ++k) {
      Uses& uses = variables[events[i].accesses[k].variable];
      const auto follows = [&](std::size_t before) {
        if (before != none && std::exchange(told[before], i) != i) f(TraceDependency{before, i, k});
      };
      if (events[i].accesses[k].mode == AccessMode::read) {
        follows(uses.writer);
        uses.readers.push_back(i);
        continue;
      }
      for (const std::size_t reader : uses.readers) follows(reader);
      if (uses.readers.empty()) follows(uses.writer);
      uses.writer = i;
      uses.readers.clear();
    }
}

void write_counters(Out& out, std::span<const TraceEvent> events, std::int64_t zero) {
  {
    Counter in_flight;
    for (const TraceEvent& e : events) in_flight.add(e.pushed, e.done);
    in_flight.write(out, "ops in flight", zero);
  }
  std::map<std::tuple<int, int, int>, std::pair<std::string, Counter>> ready;
  for (const TraceEvent& e : events) {
    const bool io = e.lane == LaneKind::io;  // one for all devices
    auto& [name, counter] =
        ready[{io ? -1 : static_cast<int>(e.device.kind), io ? 0 : e.device.index, static_cast<int>(e.lane)}];
    if (name.empty()) name = "ready: " + lane_name(e);
    counter.add(e.ready, e.start);
  }
  for (auto& [unused, lane] : ready) lane.second.write(out, lane.first, zero);
}

/// All of it, event by event: what is kept for each is a few numbers.
void write_events(Out& out, std::span<const TraceEvent> events) {
  std::int64_t zero = events.empty() ? 0 : events.front().start;
  for (const TraceEvent& e : events) zero = std::min(zero, e.pushed);
  out << "{\"displayTimeUnit\": \"ms\", \"traceEvents\": [\n";
  {
    const std::vector<std::size_t> order = by_start(events);
    const Rows rows(events, order);
    for (std::size_t row = 0; row < rows.names().size(); ++row)
      out.element() << "{\"ph\": \"M\", \"name\": \"thread_name\", \"pid\": 1, \"tid\": " << row + 1
                    << ", \"args\": {\"name\": \"" << rows.names()[row] << "\"}}";
    for (const std::size_t i : order) write_slices(out, events[i], i, rows, zero);
    std::size_t arrows = 0;
    each_dependency(events, order,
                    [&](const TraceDependency& d) { write_arrow(out, events, d, rows, ++arrows, zero); });
  }
  write_counters(out, events, zero);
  out << (out.any() ? "\n]}\n" : "]}\n");
  out.flush();
}

}  // namespace

std::vector<TraceDependency> dependencies(std::span<const TraceEvent> events) {
  std::vector<TraceDependency> all;
  each_dependency(events, by_start(events), [&](const TraceDependency& d) { all.push_back(d); });
  return all;
}

std::string to_perfetto(std::span<const TraceEvent> events) {
  std::string text;
  Out out(&text, [](void* to, std::string_view piece) { *static_cast<std::string*>(to) += piece; });
  write_events(out, events);
  return text;
}

void write_trace(const std::string& path, std::span<const TraceEvent> events) {
  struct File {
    explicit File(const std::string& path) : file(std::fopen(path.c_str(), "w")) { note(file); }
    ~File() { close(); }
    File(const File&) = delete;
    File& operator=(const File&) = delete;
    void write(std::string_view text) {
      if (file && error == 0) note(std::fwrite(text.data(), 1, text.size(), file) == text.size());
    }
    void close() {
      if (std::FILE* const open = std::exchange(file, nullptr)) note(std::fclose(open) == 0);
    }
    void note(bool good) {
      if (!good && error == 0) error = errno ? errno : EIO;
    }
    std::FILE* file;
    int error = 0;
  } file(path);
  if (file.error == 0) {
    Out out(&file, [](void* to, std::string_view piece) { static_cast<File*>(to)->write(piece); });
    write_events(out, events);
    file.close();
  }
  if (file.error != 0) throw std::runtime_error(path + ": cannot write the trace: " + std::strerror(file.error));
}

}  // namespace sluice
