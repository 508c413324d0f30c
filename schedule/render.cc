#include "sluice/schedule/render.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <stdexcept>
#include <utility>

#include "sluice/engine/bytes_in_words.h"
#include "sluice/engine/number_text.h"

namespace sluice::parallel {
namespace {

struct Shade {
  const char* fill;
  const char* text;
};
constexpr int kShades = static_cast<int>(std::tuple_size_v<decltype(ActionRow::shades)>);
constexpr const char *kIdle = "#eef1f5", *kMemory = "#d3d9e8", *kMemoryEdge = "#7d88a6";

constexpr double kMargin = 24, kRow = 44, kRowGap = 10, kBusyColumn = 64, kMemoryGap = 4, kMemoryRow = 30;
constexpr double kPanelTitle = 26, kPanelGap = 22, kLegendLine = 22;

Shade shade_of(ActionKind kind, int microbatch) {
  const ActionRow& row = row_of(kind);
  const auto i = static_cast<std::size_t>(((microbatch % kShades) + kShades) % kShades);
  return {row.shades[i], i < kShades / 2 ? "#fff" : row.ink};
}

// The same digits whatever the locale is.
std::string fixed(double value, int decimals) {
  std::array<char, 400> buffer{};
  const auto end =
      std::to_chars(buffer.data(), buffer.data() + buffer.size(), value, std::chars_format::fixed, decimals);
  return {buffer.data(), end.ptr};
}

std::string px(double value) {
  std::string text = fixed(value, 2);
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text == "-0" ? "0" : text;
}

std::string escape_xml(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      // XML has no way to write most control characters.
      default:
        out += static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? ' ' : c;
    }
  }
  return out;
}

bool starts_character(char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }

// An estimate that suits any sans-serif font, since the viewer's is not known.
double text_width(std::string_view text, double size) {
  return 0.56 * size * static_cast<double>(std::ranges::count_if(text, starts_character));
}

std::string shorten(const std::string& text, double size, double width) {
  if (text_width(text, size) <= width) return text;
  auto left = static_cast<std::ptrdiff_t>(width / (0.56 * size)) - 1;
  std::size_t end = 0;
  for (; end < text.size(); ++end) {
    if (starts_character(text[end]) && left-- <= 0) break;
  }
  return text.substr(0, end) + "…";
}

std::string svg_text(double x, double y, double size, std::string_view fill, std::string_view text,
                     std::string_view more = {}) {
  return "<text x=\"" + px(x) + "\" y=\"" + px(y) + "\" font-size=\"" + px(size) + "\" fill=\"" + std::string(fill) +
         "\"" + std::string(more) + ">" + escape_xml(text) + "</text>\n";
}

std::string svg_rect(double x, double y, double width, double height, std::string_view fill, double radius) {
  std::string text = "<rect x=\"" + px(x) + "\" y=\"" + px(y) + "\" width=\"" + px(width) + "\" height=\"" + px(height);
  if (radius > 0) text += "\" rx=\"" + px(radius);
  return text + "\" fill=\"" + std::string(fill) + "\"";
}

std::string label_of(std::span<const std::string> labels, std::size_t row) {
  return row < labels.size() && !labels[row].empty() ? labels[row] : "stage " + std::to_string(row);
}

// 1, 2 or 5 times a power of ten, so that at most max_ticks steps cover the span.
double nice_step(double span, double max_ticks) {
  const double rough = span / max_ticks, power = std::pow(10, std::floor(std::log10(rough)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= rough * (1 - 1e-9)) return factor * power;
  }
  return 10 * power;
}

struct Row {
  std::vector<std::pair<TimelineBox, std::size_t>> boxes;  // by start, each with the track that it is drawn on
  std::size_t tracks = 1;
  double busy = 0;  // seconds in which at least one box runs
};

std::vector<Row> rows_of(std::span<const TimelineBox> boxes, std::size_t count, double span) {
  std::vector<Row> rows(count);
  for (const TimelineBox& box : boxes) rows[static_cast<std::size_t>(box.stage)].boxes.push_back({box, 0});
  // Two clocks may disagree a little about where one box ends and the next begins; that is no overlap.
  const double slack = 1e-4 * span;
  for (Row& row : rows) {
    std::ranges::stable_sort(row.boxes, {}, [](const auto& entry) { return entry.first.start; });
    std::vector<double> track_end;
    double covered_to = -HUGE_VAL;
    for (auto& [box, track] : row.boxes) {
      const auto free = std::ranges::find_if(track_end, [&](double end) { return end <= box.start + slack; });
      track = static_cast<std::size_t>(free - track_end.begin());
      if (free == track_end.end()) track_end.push_back(0);
      track_end[track] = box.end;
      row.busy += std::max(0.0, box.end - std::max(box.start, covered_to));
      covered_to = std::max(covered_to, box.end);
    }
    row.tracks = std::max<std::size_t>(1, track_end.size());
  }
  return rows;
}

std::size_t row_count(std::span<const TimelineBox> boxes, std::size_t labels) {
  std::size_t rows = std::max<std::size_t>(1, labels);
  for (const TimelineBox& box : boxes) rows = std::max(rows, static_cast<std::size_t>(std::max(box.stage, 0)) + 1);
  return rows;
}

class Picture {
 public:
  Picture(std::span<const TimelinePanel> panels, const RenderOptions& options) : options_(options) {
    std::size_t rows = 1;
    for (const TimelinePanel& panel : panels) {
      rows = std::max(rows, row_count(panel.boxes, options.labels.size()));
      for (const TimelineBox& box : panel.boxes) {
        if (row_of(box.kind).cost) kinds_[static_cast<std::size_t>(box.kind)] = true;
      }
      for (const auto& curve : panel.memory) {
        for (const MemoryPoint& point : curve) {
          if (!std::isfinite(point.time) || !std::isfinite(point.bytes) || point.bytes < 0) {
            throw std::invalid_argument("a timeline has memory of " + general_text(point.bytes, 6) + " bytes at " +
                                        general_text(point.time, 6) + " s");
          }
          most_bytes_ = std::max(most_bytes_, point.bytes);
        }
      }
    }
    double widest = 0;
    for (std::size_t r = 0; r < rows; ++r) widest = std::max(widest, text_width(label_of(options.labels, r), 14));
    label_width_ = std::min(widest, 0.25 * options.width);
    left_ = kMargin + label_width_ + 14;
    plot_width_ = options.width - left_ - kBusyColumn - kMargin;
    double y = kMargin + (options.title.empty() ? 0 : 26) + (options.subtitle.empty() ? 0 : 22);
    for (const TimelinePanel& given : panels) {
      if (!panels_.empty()) y += kPanelGap;
      Panel panel{.given = &given};
      panel.span = measure(given.boxes, static_cast<int>(rows)).span;
      for (const TimelineBox& box : given.boxes) panel.begin = std::min(panel.begin, box.start);
      if (given.boxes.empty()) panel.begin = 0;
      span_ = std::max(span_, panel.span);
      panel.rows = rows_of(given.boxes, rows, panel.span);
      panel.title = y;
      if (!given.title.empty()) y += kPanelTitle;
      panel.top = y;
      for (std::size_t r = 0; r < rows; ++r) {
        panel.y.push_back(y);
        y += kRow + kRowGap + (has_memory(panel, r) ? kMemoryGap + kMemoryRow : 0);
      }
      y -= kRowGap;
      panel.bottom = y;
      panels_.push_back(std::move(panel));
    }
    bottom_ = y;
  }

  std::string draw() && {
    const std::string legend_text = legend(bottom_ + 54);
    const double height = bottom_ + 76 + (legend_lines_ - 1) * kLegendLine;
    const std::string size = "width=\"" + px(options_.width) + "\" height=\"" + px(height) + "\"";
    out_ = "<svg xmlns=\"http://www.w3.org/2000/svg\" " + size + " viewBox=\"0 0 " + px(options_.width) + " " +
           px(height) +
           "\" role=\"img\" font-family=\"'Inter', 'Segoe UI', 'Helvetica Neue', Helvetica, Arial, 'DejaVu Sans', "
           "sans-serif\">\n<title>" +
           escape_xml(options_.title.empty() ? "Pipeline timeline" : options_.title) + "</title>\n";
    out_ += svg_rect(0.5, 0.5, options_.width - 1, height - 1, "#ffffff", 8) + " stroke=\"#d9dee5\"/>\n";
    header();
    for (const Panel& panel : panels_) {
      if (!panel.given->title.empty()) {
        out_ += svg_text(left_, panel.title + 12, 14, "#1b2430", shorten(panel.given->title, 14, plot_width_),
                         " font-weight=\"600\"");
      }
      grid(panel);
      for (std::size_t r = 0; r < panel.rows.size(); ++r) {
        row(panel, r);
        if (has_memory(panel, r)) memory(panel, r);
      }
    }
    axis();
    return std::move(out_) + legend_text + "</svg>\n";
  }

 private:
  struct Panel {
    const TimelinePanel* given;
    std::vector<Row> rows = {};
    std::vector<double> y = {};  // of each row
    double begin = HUGE_VAL, span = 0, title = 0, top = 0, bottom = 0;
  };

  static bool has_memory(const Panel& panel, std::size_t r) {
    return r < panel.given->memory.size() && !panel.given->memory[r].empty();
  }
  double x_of(double seconds) const { return left_ + (span_ > 0 ? seconds / span_ * plot_width_ : 0); }

  void header() {
    const double width = options_.width - 2 * kMargin;
    double y = kMargin;
    if (!options_.title.empty()) {
      out_ += svg_text(kMargin, y + 12, 18, "#1b2430", shorten(options_.title, 18, width), " font-weight=\"600\"");
      y += 26;
    }
    if (!options_.subtitle.empty()) {
      out_ += svg_text(kMargin, y + 8, 13, "#5a6675", shorten(options_.subtitle, 13, width - kBusyColumn));
    }
  }

  double tick() const { return span_ > 0 ? nice_step(span_ * 1e3, plot_width_ / 90) : 1; }
  template <class F>
  void each_tick(F f) const {
    for (int i = 0; i * tick() <= span_ * 1e3 * (1 + 1e-9); ++i) f(i * tick(), x_of(i * tick() / 1e3));
  }

  // The idle tracks lie below the grid, so that its lines show in the bubbles.
  void grid(const Panel& panel) {
    for (const double y : panel.y) out_ += svg_rect(left_, y, plot_width_, kRow, kIdle, 3) + "/>\n";
    std::string lines;
    each_tick([&](double, double x) {
      lines += "<path d=\"M" + px(x) + " " + px(panel.top - 5) + "V" + px(panel.bottom + 6) + "\"/>\n";
    });
    out_ += "<g stroke=\"#cfd6df\" stroke-width=\"1\">\n" + lines + "</g>\n";
    out_ += svg_text(options_.width - kMargin, panel.top - 8, 12, "#5a6675", "busy", " text-anchor=\"end\"");
  }

  void axis() {
    const int decimals = std::clamp(static_cast<int>(-std::floor(std::log10(tick()) + 1e-9)), 0, 9);
    std::string texts;
    each_tick(
        [&](double ms, double x) { texts += svg_text(x, bottom_ + 22, 12, "#5a6675", fixed(ms, decimals) + " ms"); });
    out_ += "<g text-anchor=\"middle\">\n" + texts + "</g>\n";
  }

  void row(const Panel& panel, std::size_t r) {
    const Row& data = panel.rows[r];
    const double y = panel.y[r], middle = y + kRow / 2 + 5;
    const std::string label = label_of(options_.labels, r);
    out_ += svg_text(left_ - 14, middle, 14, "#1b2430", shorten(label, 14, label_width_), " text-anchor=\"end\"");
    const double busy = panel.span > 0 ? 100 * data.busy / panel.span : 0;
    out_ += svg_text(options_.width - kMargin, middle, 13, "#5a6675", fixed(busy, 0) + " %", " text-anchor=\"end\"");
    const double height = kRow / static_cast<double>(data.tracks);
    std::string numbers;
    out_ += "<g stroke=\"#ffffff\" stroke-width=\"0.8\">\n";
    for (const auto& [box, track] : data.boxes) {
      const double x = x_of(box.start - panel.begin), top = y + static_cast<double>(track) * height;
      const double width = std::max(x_of(box.end - panel.begin) - x, 0.4);
      const Shade shade = shade_of(box.kind, box.microbatch);
      // Around a very thin box the white line would leave nothing of it.
      out_ += svg_rect(x, top, width, height, shade.fill, width < 6 ? 0 : 2.5) +
              (width < 3 ? " stroke=\"none\">" : ">") + tooltip(panel, box, label) + "</rect>\n";
      const std::string number = std::to_string(box.microbatch);
      for (const double size : {12.0, 9.0}) {
        if (text_width(number, size) + 2 > width || size > height) continue;
        numbers += svg_text(x + width / 2, top + height / 2 + 0.36 * size, size, shade.text, number);
        break;
      }
    }
    out_ += "</g>\n";
    if (!numbers.empty()) out_ += "<g text-anchor=\"middle\" pointer-events=\"none\">\n" + numbers + "</g>\n";
  }

  // Steps: from each point on so many bytes are held.
  void memory(const Panel& panel, std::size_t r) {
    const std::vector<MemoryPoint>& curve = panel.given->memory[r];
    const double base = panel.y[r] + kRow + kMemoryGap + kMemoryRow, end = x_of(panel.span);
    const auto y_of = [&](double bytes) { return base - (most_bytes_ > 0 ? bytes / most_bytes_ * kMemoryRow : 0); };
    std::string line;
    double most = 0;
    for (const MemoryPoint& point : curve) {
      const double x = std::clamp(x_of(point.time - panel.begin), left_, end);
      line += (line.empty() ? "M" + px(left_) + " " + px(y_of(point.bytes)) + "H" : "H") + px(x) + "V" +
              px(y_of(point.bytes));
      most = std::max(most, point.bytes);
    }
    line += "H" + px(end);
    const std::string label = label_of(options_.labels, r);
    out_ += "<path d=\"" + line + "V" + px(base) + "H" + px(left_) + "Z\" fill=\"" + kMemory + "\"><title>memory of " +
            escape_xml(label) + ": at most " + bytes_in_words(most) + "</title></path>\n";
    out_ += "<path d=\"" + line + "\" fill=\"none\" stroke=\"" + kMemoryEdge + "\"/>\n";
    const double middle = base - kMemoryRow / 2 + 4;
    out_ += svg_text(left_ - 14, middle, 11, "#5a6675", "memory", " text-anchor=\"end\"");
    out_ += svg_text(options_.width - kMargin, middle, 11, "#5a6675", bytes_in_words(most), " text-anchor=\"end\"");
  }

  static std::string tooltip(const Panel& panel, const TimelineBox& box, const std::string& label) {
    const auto ms = [](double seconds) { return fixed(seconds * 1e3, 3); };
    return "<title>" + std::string(1, row_of(box.kind).letter) + std::to_string(box.microbatch) + " on " +
           escape_xml(label) + ": " + ms(box.start - panel.begin) + " to " + ms(box.end - panel.begin) + " ms, " +
           ms(box.end - box.start) + " ms long</title>";
  }

  /// In as many lines as it needs.
  std::string legend(double y) {
    std::string out;
    double x = left_;
    legend_lines_ = 1;
    const auto entry = [&](double swatches, const std::string& text, auto draw) {
      const double width = swatches + text_width(text, 12);
      if (x > left_ && x + width > options_.width - kMargin) {
        x = left_;
        y += kLegendLine;
        ++legend_lines_;
      }
      draw();
      out += svg_text(x + swatches, y + 4, 12, "#3b4654", text);
      x += width + 22;
    };
    for (int kind = 0; kind < kActionKinds; ++kind) {
      const auto k = static_cast<ActionKind>(kind);
      // The two that every reader looks for, and whatever else is in the picture.
      if (kind > 1 && !kinds_[static_cast<std::size_t>(kind)]) continue;
      if (kind == 1 && kinds_[static_cast<std::size_t>(ActionKind::weight_gradient)] && !kinds_[1]) continue;
      entry(14 * kShades + 6, std::string(1, row_of(k).letter) + " " + row_of(k).name, [&] {
        for (int i = 0; i < kShades; ++i) out += svg_rect(x + 14 * i, y - 7, 13, 13, shade_of(k, i).fill, 2) + "/>\n";
      });
    }
    entry(33, "idle", [&] { out += svg_rect(x, y - 7, 26, 13, kIdle, 2) + " stroke=\"#cfd6df\"/>\n"; });
    if (most_bytes_ > 0) {
      entry(33, "memory, up to " + bytes_in_words(most_bytes_),
            [&] { out += svg_rect(x, y - 7, 26, 13, kMemory, 2) + " stroke=\"" + kMemoryEdge + "\"/>\n"; });
    }
    entry(0, "number = microbatch", [] {});
    return out;
  }

  const RenderOptions& options_;
  std::vector<Panel> panels_;
  std::array<bool, kActionKinds> kinds_{};  // those that there are boxes of
  double span_ = 0, most_bytes_ = 0;
  double label_width_ = 0, left_ = 0, plot_width_ = 0, bottom_ = 0;
  int legend_lines_ = 1;
  std::string out_;
};

}  // namespace

std::string render_svg(std::span<const TimelineBox> boxes, const RenderOptions& options) {
  const TimelinePanel one{.boxes = {boxes.begin(), boxes.end()}};
  return render_panels(std::span(&one, 1), options);
}

std::string render_panels(std::span<const TimelinePanel> panels, const RenderOptions& options) {
  if (options.width < 480) {
    throw std::invalid_argument("a timeline picture is at least 480 pixels wide, not " + std::to_string(options.width));
  }
  return Picture(panels, options).draw();
}

}  // namespace sluice::parallel
