// Traces as Chrome/Perfetto JSON.
#include "sluice/engine/trace.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <map>
#include <numeric>
#include <set>
#include <stdexcept>
#include <tuple>
#include <utility>

namespace sluice {
namespace {

void append_escaped(std::string& out, const char* text) {
  for (; text && *text; ++text) {
    const auto c = static_cast<unsigned char>(*text);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += static_cast<char>(c);
    } else if (c < 0x20) {
      char code[8];
      std::snprintf(code, sizeof code, "\\u%04x", c);
      out += code;
    } else {
      out += static_cast<char>(c);
    }
  }
}

std::string micros(std::int64_t ns) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3f", static_cast<double>(ns) / 1000.0);
  return text;
}

constexpr const char* kLaneNames[] = {"compute", "copy in", "copy out", "io"};

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
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    const TraceEvent &x = events[a], &y = events[b];
    return std::tie(x.start, x.end, x.pushed) < std::tie(y.start, y.end, y.pushed);
  });
  return order;
}

/// A row for each device, lane and thread; more where ops overlap, as on a stream.
class Rows {
 public:
  Rows(std::span<const TraceEvent> events, const std::vector<std::size_t>& order) : of_(events.size()) {
    using Key = std::tuple<int, int, int, std::uint32_t>;
    const auto key = [](const TraceEvent& e) {
      return Key{static_cast<int>(e.device.kind), e.device.index, static_cast<int>(e.lane), e.thread};
    };
    struct Part {
      std::vector<std::int64_t> ends;  ///< of what is open
      std::vector<std::size_t> events;
    };
    std::map<Key, std::vector<Part>> rows;
    for (const std::size_t i : order) {
      auto& parts = rows[key(events[i])];
      std::size_t k = 0;
      for (;; ++k) {
        if (k == parts.size()) parts.emplace_back();
        auto& ends = parts[k].ends;
        while (!ends.empty() && ends.back() <= events[i].start) ends.pop_back();
        if (ends.empty() || events[i].end <= ends.back()) break;
      }
      parts[k].ends.push_back(events[i].end);
      parts[k].events.push_back(i);
    }
    for (const auto& [unused, parts] : rows)
      for (std::size_t k = 0; k < parts.size(); ++k) {
        const TraceEvent& e = events[parts[k].events.front()];
        names_.push_back(lane_name(e) + ", thread " + std::to_string(e.thread) +
                         (k ? " (" + std::to_string(k + 1) + ")" : ""));
        for (const std::size_t i : parts[k].events) of_[i] = static_cast<int>(names_.size());
      }
  }
  /// Names of rows 1, 2, ...
  const std::vector<std::string>& names() const { return names_; }
  std::string operator[](std::size_t event) const { return std::to_string(of_[event]); }

 private:
  std::vector<std::string> names_;
  std::vector<int> of_;
};

/// A number over time, as its changes.
class Counter {
 public:
  void add(std::int64_t from, std::int64_t to) {
    ++changes_[from];
    --changes_[std::max(from, to)];
  }
  void write(std::string& out, const std::string& name, std::int64_t zero) const {
    std::int64_t value = 0;
    for (const auto& [time, change] : changes_) {
      if (change == 0) continue;
      value += change;
      out += "{\"ph\": \"C\", \"name\": \"" + name + "\", \"pid\": 1, \"ts\": " + micros(time - zero) +
             ", \"args\": {\"ops\": " + std::to_string(value) + "}},\n";
    }
  }

 private:
  std::map<std::int64_t, std::int64_t> changes_;
};

void append_slice(std::string& out, const TraceEvent& e, const std::string& row, std::int64_t zero) {
  out += "{\"ph\": \"X\", \"name\": \"";
  append_escaped(out, e.name);
  out += "\", \"pid\": 1, \"tid\": " + row + ", \"ts\": " + micros(e.start - zero) +
         ", \"dur\": " + micros(e.end - e.start) + ", \"args\": {\"op\": " + std::to_string(e.id) +
         ", \"pushed at\": \"";
  append_escaped(out, e.file);
  out += ":" + std::to_string(e.line) + "\", \"waited us\": " + micros(e.ready - e.pushed) +
         ", \"queued us\": " + micros(e.start - e.ready);
  out += e.failed ? ", \"failed\": true}},\n" : "}},\n";
}

void append_arrow(std::string& out, std::span<const TraceEvent> events, const TraceDependency& d, const Rows& rows,
                  std::size_t number, std::int64_t zero) {
  const TraceEvent &before = events[d.before], &after = events[d.after];
  const TraceAccess& access = after.accesses[d.access];
  std::string common = "\", \"cat\": \"dependency\", \"name\": \"";
  append_escaped(common, (access.name.empty() ? "variable " + std::to_string(access.variable) : access.name).c_str());
  common += "\", \"id\": " + std::to_string(number) + ", \"pid\": 1, \"tid\": ";
  // Both ends must lie within their slices, and the tail not behind the head: a stream's op may begin before the one
  // that it waits for on the device has ended.
  const std::int64_t tail = std::max(before.start, std::min(before.end - 1, after.start));
  out += "{\"ph\": \"s" + common + rows[d.before] + ", \"ts\": " + micros(tail - zero) + "},\n";
  out += "{\"ph\": \"f\", \"bp\": \"e" + common + rows[d.after] + ", \"ts\": " + micros(after.start - zero) + "},\n";
}

}  // namespace

std::vector<TraceDependency> dependencies(std::span<const TraceEvent> events) {
  constexpr std::size_t none = static_cast<std::size_t>(-1);
  struct Uses {
    std::size_t writer = none;
    std::vector<std::size_t> readers;  ///< since
  };
  std::map<std::uint32_t, Uses> variables;
  std::vector<TraceDependency> all;
  std::set<std::size_t> told;  ///< of the op in hand
  for (const std::size_t i : by_start(events)) {
    told.clear();
    for (std::size_t k = 0; k < events[i].accesses.size(); ++k) {
      Uses& uses = variables[events[i].accesses[k].variable];
      const auto follows = [&](std::size_t before) {
        if (before != none && told.insert(before).second) all.push_back({before, i, k});
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
  return all;
}

std::string to_perfetto(std::span<const TraceEvent> events) {
  std::int64_t zero = events.empty() ? 0 : events.front().start;
  for (const TraceEvent& e : events) zero = std::min(zero, e.pushed);
  const std::vector<std::size_t> order = by_start(events);
  const Rows rows(events, order);
  std::string out = "{\"displayTimeUnit\": \"ms\", \"traceEvents\": [\n";
  for (std::size_t row = 0; row < rows.names().size(); ++row)
    out += "{\"ph\": \"M\", \"name\": \"thread_name\", \"pid\": 1, \"tid\": " + std::to_string(row + 1) +
           ", \"args\": {\"name\": \"" + rows.names()[row] + "\"}},\n";
  for (const std::size_t i : order) append_slice(out, events[i], rows[i], zero);
  std::size_t arrows = 0;
  for (const TraceDependency& d : dependencies(events)) append_arrow(out, events, d, rows, ++arrows, zero);
  Counter in_flight;
  std::map<std::string, Counter> ready;
  for (const TraceEvent& e : events) {
    in_flight.add(e.pushed, e.done);
    ready["ready: " + lane_name(e)].add(e.ready, e.start);
  }
  in_flight.write(out, "ops in flight", zero);
  for (const auto& [name, counter] : ready) counter.write(out, name, zero);
  if (out.ends_with(",\n")) out.erase(out.size() - 2, 1);
  return out += "]}\n";
}

void write_trace(const std::string& path, std::span<const TraceEvent> events) {
  const std::string text = to_perfetto(events);
  std::FILE* file = std::fopen(path.c_str(), "w");
  const bool written = file && std::fwrite(text.data(), 1, text.size(), file) == text.size();
  if (file && std::fclose(file) == 0 && written) return;
  throw std::runtime_error(path + ": cannot write the trace: " + std::strerror(errno));
}

}  // namespace sluice
