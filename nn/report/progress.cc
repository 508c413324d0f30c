#include "sluice/nn/report/progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <utility>

#include "sluice/engine/errors.h"
#include "sluice/engine/number_text.h"

namespace sluice::nn {
namespace {

double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// Three digits: "0.0123", "12.3", "1230".
std::string rate_text(double x) { return x < 999.5 ? general_text(x, 3) : fixed_text(x, 0); }

/// How many times shown / total goes into `parts`, rounded down.
std::int64_t part_of(std::int64_t shown, std::int64_t total, std::int64_t parts) {
  const std::int64_t by = total / (std::numeric_limits<std::int64_t>::max() / 128) + 1;  // no product overflows
  return shown / by * parts / (total / by);
}

/// The first characters of a line of UTF-8, one less than the terminal has columns; all of it where it is none.
std::string fitting(const std::string& line, std::FILE* to) {
  winsize size{};
  if (::ioctl(fileno(to), TIOCGWINSZ, &size) != 0 || size.ws_col < 2) return line;
  std::size_t end = 0;
  for (int columns = 0; end < line.size(); ++end) {
    const bool begins = (static_cast<unsigned char>(line[end]) & 0xc0) != 0x80;
    if (begins && ++columns == size.ws_col) break;
  }
  return line.substr(0, end);
}

/// "0:42", "1:02:03".
std::string time_text(double seconds) {
  const auto all = static_cast<std::int64_t>(seconds + .5);
  const auto two = [](std::int64_t x) { return (x < 10 ? "0" : "") + std::to_string(x); };
  const std::int64_t hours = all / 3600, minutes = all / 60 % 60;
  return (hours ? std::to_string(hours) + ":" + two(minutes) : std::to_string(minutes)) + ":" + two(all % 60);
}

}  // namespace

Progress::Progress(std::string title, std::int64_t total, ProgressOptions options, std::int64_t done)
    : title_(std::move(title)), total_(total), first_(done), options_(std::move(options)) {
  if (total < 1 || done < 0) {
    throw UsageError("[nn::Progress] " + std::to_string(done) + " of " + std::to_string(total) + " steps");
  }
  if (!options_.now) options_.now = steady_seconds;
  terminal_ = options_.terminal.value_or(isatty(fileno(options_.to)) != 0);
  begin_ = options_.now();
  last_tenth_ = part_of(std::min(done, total), total, 10);
}

Progress::~Progress() { leave(); }

std::string Progress::rates(std::int64_t done, double seconds) const {
  if (done <= first_ || !(seconds > 0)) return "";
  const double rate = static_cast<double>(done - first_) / seconds;
  std::string text = rate_text(rate) + " steps/s";
  if (options_.samples > 0) text += ", " + rate_text(rate * options_.samples) + " samples/s";
  const bool over = done >= total_;
  return text + ", " + time_text(over ? seconds : static_cast<double>(total_ - done) / rate) + (over ? "" : " left");
}

void Progress::show(std::int64_t done, const std::string& text) {
  constexpr std::int64_t kWidth = 28;
  const double now = options_.now();
  const std::int64_t shown = std::clamp<std::int64_t>(done, 0, total_);
  const auto part = [&](std::int64_t of) { return part_of(shown, total_, of); };
  const bool last = shown == total_;
  const bool again = terminal_ && (last ? last_tenth_ > 10 : drawn_ && now - last_draw_ < .1);
  if (again || (!terminal_ && part(10) <= last_tenth_)) return;
  std::string line = title_ + " ";
  if (terminal_) {
    for (std::int64_t i = 0; i < kWidth; ++i) line += i < part(kWidth) ? "█" : "·";
    line += " ";
  }
  const std::string percent = std::to_string(part(100));
  line += std::string(3 - std::min<std::size_t>(3, percent.size()), ' ') + percent + " %";
  const std::string speed = rates(done, now - begin_);
  if (!text.empty() || !speed.empty()) line += "  " + text + (text.empty() || speed.empty() ? "" : ", ") + speed;
  if (terminal_) {
    std::fprintf(options_.to, "\r%s\033[K", fitting(line, options_.to).c_str());
    drawn_ = true;
    last_draw_ = now;
    if (last) {
      last_tenth_ = 11;  // the last line is drawn
      leave();
    }
  } else {
    std::fprintf(options_.to, "%s\n", line.c_str());
    last_tenth_ = part(10);
  }
  std::fflush(options_.to);
}

void Progress::leave() {
  if (!std::exchange(drawn_, false)) return;
  std::fprintf(options_.to, "\n");
  std::fflush(options_.to);
}

}  // namespace sluice::nn
