// Traces as Chrome/Perfetto JSON.
#include "sluice/engine/trace.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <map>
#include <stdexcept>
#include <tuple>

namespace sluice {
namespace {

void append_escaped(std::string& out, const char* text) {
  for (; *text; ++text) {
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

}  // namespace

std::string to_perfetto(std::span<const TraceEvent> events) {
  constexpr const char* lane_names[] = {"compute", "copy in", "copy out", "io"};
  std::int64_t zero = events.empty() ? 0 : events.front().start;
  for (const TraceEvent& e : events) zero = std::min(zero, e.pushed);
  std::map<std::tuple<int, int, int, std::uint32_t>, int> rows;
  for (const TraceEvent& e : events)
    rows.try_emplace({static_cast<int>(e.device.kind), e.device.index, static_cast<int>(e.lane), e.thread}, 0);
  std::string out = "{\"displayTimeUnit\": \"ms\", \"traceEvents\": [\n";
  int next = 1;
  for (auto& [key, row] : rows) {
    row = next++;
    const auto& [kind, index, lane, thread] = key;
    const Device device{static_cast<DeviceKind>(kind), static_cast<std::uint8_t>(index)};
    out += "{\"ph\": \"M\", \"name\": \"thread_name\", \"pid\": 1, \"tid\": ";
    out += std::to_string(row);
    out += ", \"args\": {\"name\": \"";
    out += to_string(device);
    out += ' ';
    out += lane_names[lane];
    out += ", thread ";
    out += std::to_string(thread);
    out += "\"}},\n";
  }
  for (const TraceEvent& e : events) {
    out += "{\"ph\": \"X\", \"name\": \"";
    append_escaped(out, e.name);
    out += "\", \"pid\": 1, \"tid\": ";
    out +=
        std::to_string(rows.at({static_cast<int>(e.device.kind), e.device.index, static_cast<int>(e.lane), e.thread}));
    out += ", \"ts\": ";
    out += micros(e.start - zero);
    out += ", \"dur\": ";
    out += micros(e.end - e.start);
    out += ", \"args\": {\"pushed at\": \"";
    append_escaped(out, e.file);
    out += ':';
    out += std::to_string(e.line);
    out += "\", \"waited us\": ";
    out += micros(e.ready - e.pushed);
    out += ", \"queued us\": ";
    out += micros(e.start - e.ready);
    out += e.failed ? ", \"failed\": true}},\n" : "}},\n";
  }
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
