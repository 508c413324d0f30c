// The parts of render.h that are no picture: the trace and the file.
#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <system_error>

#include "sluice/schedule/render.h"

namespace sluice::parallel {

std::string render_perfetto(std::span<const TimelineBox> boxes, std::span<const std::string> labels) {
  using nlohmann::ordered_json;
  std::size_t rows = labels.size();
  double begin = HUGE_VAL;
  for (const TimelineBox& box : boxes) {
    rows = std::max(rows, static_cast<std::size_t>(std::max(box.stage, 0)) + 1);
    begin = std::min(begin, box.start);
  }
  measure(boxes, std::max(1, static_cast<int>(rows)));  // refuses boxes that cannot be

  ordered_json events = ordered_json::array();
  events.push_back({{"ph", "M"}, {"name", "process_name"}, {"pid", 1}, {"args", {{"name", "pipeline"}}}});
  for (std::size_t r = 0; r < rows; ++r) {
    std::string label = "stage ";
    label += std::to_string(r);
    if (r < labels.size() && !labels[r].empty()) label = labels[r];
    events.push_back({{"ph", "M"}, {"name", "thread_name"}, {"pid", 1}, {"tid", r}, {"args", {{"name", label}}}});
    events.push_back(
        {{"ph", "M"}, {"name", "thread_sort_index"}, {"pid", 1}, {"tid", r}, {"args", {{"sort_index", r}}}});
  }
  // Nanoseconds are the finest that a clock gives; more digits would only be noise in the file.
  const auto us = [](double seconds) { return std::round(seconds * 1e9) / 1e3; };
  for (const TimelineBox& box : boxes) {
    const ActionRow& row = row_of(box.kind);
    const std::string name = row.letter + std::to_string(box.microbatch);
    events.push_back({{"ph", "X"},
                      {"name", name},
                      {"cat", row.name},
                      {"pid", 1},
                      {"tid", box.stage},
                      {"ts", us(box.start - begin)},
                      {"dur", us(box.end - box.start)},
                      {"args", {{"stage", box.stage}, {"microbatch", box.microbatch}}}});
  }
  // One event a line: a person can read the file, and tools that compare text show what differs.
  std::string text = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n";
  for (std::size_t i = 0; i < events.size(); ++i) {
    text += events[i].dump(-1, ' ', false, ordered_json::error_handler_t::replace);
    text += i + 1 < events.size() ? ",\n" : "\n";
  }
  return text + "]}\n";
}

void write_file(const std::string& path, std::string_view text) {
  const auto fail = [&](int error) {
    throw std::runtime_error("cannot write " + path + ": " + std::generic_category().message(error));
  };
  std::FILE* file = std::fopen(path.c_str(), "wb");
  if (!file) fail(errno);
  const bool written = std::fwrite(text.data(), 1, text.size(), file) == text.size();
  const int write_error = errno;
  // Closing flushes, so a full disk may show only here; it is checked too, and always done.
  const bool closed = std::fclose(file) == 0;
  const int close_error = errno;
  if (!written) fail(write_error);
  if (!closed) fail(close_error);
}

}  // namespace sluice::parallel
