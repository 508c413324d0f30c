// A picture of a training run: losses by step, as an SVG file, and as numbers beside it.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "sluice/sluice.h"

/// Losses of steps, read a few steps later, so that nobody waits for the newest.
class LossPicture {
 public:
  static constexpr long kBehind = 8;  ///< so many steps later
  void add(long step, const sluice::NDArray& loss) {
    waiting_.emplace_back(step, loss.detach());
    if (static_cast<long>(waiting_.size()) > kBehind) take();
  }
  /// The mean of the latest 20 losses that were read; 0 before.
  double recent() const {
    const std::size_t n = std::min<std::size_t>(20, points_.size());
    double sum = 0;
    for (std::size_t i = points_.size() - n; i < points_.size(); ++i) sum += points_[i].second;
    return n ? sum / static_cast<double>(n) : 0;
  }
  /// Writes PATH.svg and PATH.csv ("step,loss"). Waits for all. Throws std::runtime_error where it cannot.
  void write(const std::string& name, const std::string& title) {
    while (!waiting_.empty()) take();
    std::FILE* const numbers = std::fopen((name + ".csv").c_str(), "w");
    if (!numbers) throw std::runtime_error("cannot write " + name + ".csv");
    std::fputs("step,loss\n", numbers);
    for (const auto& [step, loss] : points_) std::fprintf(numbers, "%ld,%.9g\n", step, loss);
    if (std::fclose(numbers) != 0) throw std::runtime_error("cannot write " + name + ".csv");
    const std::string path = name + ".svg";
    std::FILE* const file = std::fopen(path.c_str(), "w");
    if (!file) throw std::runtime_error("cannot write " + path);
    constexpr double width = 720, height = 360, left = 56, top = 36, right = 16, bottom = 40;
    double low = INFINITY, high = -INFINITY, last = 1;
    for (const auto& [step, loss] : points_) {
      low = std::min(low, loss);
      high = std::max(high, loss);
      last = std::max(last, static_cast<double>(step));
    }
    if (!(high > low)) high = low + 1;
    const auto x = [&](double step) { return left + step / last * (width - left - right); };
    const auto y = [&](double loss) { return top + (high - loss) / (high - low) * (height - top - bottom); };
    std::fprintf(file,
                 "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %g %g\" font-family=\"sans-serif\" "
                 "font-size=\"12\"><rect width=\"%g\" height=\"%g\" fill=\"white\"/><text x=\"%g\" y=\"22\" "
                 "font-size=\"15\">%s</text>\n",
                 width, height, width, height, left, title.c_str());
    for (int i = 0; i <= 4; ++i) {
      const double loss = low + (high - low) * i / 4, step = last * i / 4;
      std::fprintf(file,
                   "<line x1=\"%g\" x2=\"%g\" y1=\"%.1f\" y2=\"%.1f\" stroke=\"#ddd\"/><text x=\"%g\" y=\"%.1f\" "
                   "text-anchor=\"end\">%.2f</text><text x=\"%.1f\" y=\"%g\" text-anchor=\"middle\">%.0f</text>\n",
                   left, width - right, y(loss), y(loss), left - 6, y(loss) + 4, loss, x(step), height - 22, step);
    }
    std::fprintf(file,
                 "<text x=\"%g\" y=\"%g\" text-anchor=\"middle\">step</text><polyline fill=\"none\" "
                 "stroke=\"#1f6fb2\" stroke-width=\"1.5\" points=\"",
                 width / 2, height - 6);
    for (const auto& [step, loss] : points_) std::fprintf(file, "%.1f,%.1f ", x(static_cast<double>(step)), y(loss));
    std::fprintf(file, "\"/></svg>\n");
    if (std::fclose(file) != 0) throw std::runtime_error("cannot write " + path);
  }

 private:
  void take() {
    const double loss = waiting_.front().second.to(sluice::DType::f64).item<double>();
    if (std::isfinite(loss)) points_.emplace_back(waiting_.front().first, loss);
    waiting_.pop_front();
  }
  std::deque<std::pair<long, sluice::NDArray>> waiting_;
  std::vector<std::pair<long, double>> points_;
};
