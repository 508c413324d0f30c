// Pictures of a pipeline's timeline, measured or simulated: an SVG for people, a trace for ui.perfetto.dev.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sluice/schedule/simulate.h"
#include "sluice/schedule/timeline.h"

namespace sluice::parallel {

/// All text is UTF-8; it is escaped, and shortened where it would not fit.
struct RenderOptions {
  std::string title = {};                ///< First line; left out if empty.
  std::string subtitle = {};             ///< Second line, smaller; left out if empty.
  std::vector<std::string> labels = {};  ///< One a row, such as "stage 0 · cpu(0)"; else rows are called "stage N".
  int width = 1200;                      ///< Pixels, at least 480; the height follows from the rows.
};

/// A self-contained SVG without scripts or links: a row for each stage with its boxes in a colour for each kind, shaded
/// by microbatch, the microbatch's number where it fits, a time axis in ms that starts at the first box, the share of
/// time that each row was busy, and a legend. Hovering over a box names it with its times. Boxes of one row that
/// overlap in time are drawn below each other within the row. The same input gives the same bytes. Throws
/// std::invalid_argument for a width below 480, and for boxes as measure() does. Pure and thread-safe.
std::string render_svg(std::span<const TimelineBox> boxes, const RenderOptions& options = {});

/// A timeline of several in one picture.
struct TimelinePanel {
  std::string title = {};  ///< "planned", above its rows; left out if empty
  std::vector<TimelineBox> boxes;
  /// For each row its memory, from the first moment on to the end, by time, on the clock of the boxes; or nothing.
  std::vector<std::vector<MemoryPoint>> memory = {};
};

/// Timelines below each other, such as planned and measured, on one scale of time, each from its own first box on; all
/// have as many rows as the one that has most. Below a row with memory is what it holds over time, on one scale of
/// bytes for all rows, with the most at the right. Throws as above, and for memory that is negative or not finite.
std::string render_panels(std::span<const TimelinePanel> panels, const RenderOptions& options = {});

/// Trace-event JSON, as ui.perfetto.dev and chrome://tracing open it: one thread row a stage, named by its label (or
/// "stage N"), one complete ("X") event a box, in microseconds from the first start. Throws as render_svg does for
/// boxes.
std::string render_perfetto(std::span<const TimelineBox> boxes, std::span<const std::string> labels = {});

/// Writes text as the file's whole content. Blocking. Throws std::runtime_error with the path and the system's reason.
void write_file(const std::string& path, std::string_view text);

}  // namespace sluice::parallel
