// The rules of optimisers, a row for each: its name, the rule, and its steps in double, written out from the paper.
// rules_test.cc holds of each that it follows them on arrays of any shape and dtype, that its fused row equals its
// composition, that a step which fails changes nothing, and that a saved run goes on bit for bit.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <map>
#include <numbers>
#include <string>
#include <utility>
#include <vector>

#include "sluice/nn/optim/rules.h"

namespace sluice::test {

/// Changes a parameter of this shape by its gradient, in step 0, 1, ...; keeps what the rule keeps.
using Steps = std::function<void(std::vector<double>& w, const std::vector<double>& g, const Dims& shape, int step)>;

struct RuleRow {
  std::string name;
  std::vector<nn::RuleFor> rules;
  std::function<Steps()> steps;  ///< of one parameter; empty: it has a test of its own
};

/// What an elementwise rule keeps of an element, by any name; 0 at first.
using KeptNumbers = std::map<std::string, double>&;

/// Steps of a rule that sees one element at a time: f(w, g, kept, step) is its new value.
inline std::function<Steps()> each(const std::function<double(double w, double g, KeptNumbers kept, int step)>& f) {
  return [f] {
    return [f, kept = std::vector<std::map<std::string, double>>()](
               std::vector<double>& w, const std::vector<double>& g, const Dims&, int step) mutable {
      kept.resize(w.size());
      for (std::size_t i = 0; i < w.size(); ++i) w[i] = f(w[i], g[i], kept[i], step);
    };
  };
}

inline double adam_direction(double g, KeptNumbers k, int step, double beta2, double eps) {
  k["m"] = 0.9 * k["m"] + 0.1 * g;
  k["v"] = beta2 * k["v"] + (1 - beta2) * g * g;
  return k["m"] / (1 - std::pow(0.9, step + 1)) / (std::sqrt(k["v"] / (1 - std::pow(beta2, step + 1))) + eps);
}

inline double norm_of(const std::vector<double>& x) {
  double squares = 0;
  for (const double v : x) squares += v * v;
  return std::sqrt(squares);
}
inline double rms_of(const std::vector<double>& x) { return norm_of(x) / std::sqrt(static_cast<double>(x.size())); }

inline Steps lamb_steps(double lr, double weight_decay, bool adapt) {
  return [=, kept = std::vector<std::map<std::string, double>>()](std::vector<double>& w, const std::vector<double>& g,
                                                                  const Dims&, int step) mutable {
    kept.resize(w.size());
    std::vector<double> r(w.size());
    for (std::size_t i = 0; i < w.size(); ++i) {
      r[i] = adam_direction(g[i], kept[i], step, 0.999, 1e-6) + weight_decay * w[i];
    }
    const double of_value = norm_of(w), of_step = norm_of(r);
    const double ratio = adapt && of_value > 0 && of_step > 0 ? of_value / of_step : 1;
    for (std::size_t i = 0; i < w.size(); ++i) w[i] -= lr * ratio * r[i];
  };
}

inline Steps adafactor_steps(const nn::Adafactor& rule) {
  std::vector<double> s, row_means, column_means, moment;
  return [=](std::vector<double>& w, const std::vector<double>& g, const Dims& shape, int step) mutable {
    const std::size_t n = w.size();
    const double t = step + 1, fresh = std::pow(t, rule.beta2_decay), eps1 = rule.eps1.value_or(2.220446049250313e-16);
    const double lr = rule.lr(step);
    s.resize(n), moment.resize(n);
    if (shape.rank() < 2) {
      for (std::size_t i = 0; i < n; ++i) s[i] = (1 - fresh) * s[i] + fresh * g[i] * g[i];
    } else {
      const auto rows = static_cast<std::size_t>(shape[shape.rank() - 2]);
      const auto columns = static_cast<std::size_t>(shape[shape.rank() - 1]), matrices = n / (rows * columns);
      row_means.resize(matrices * rows), column_means.resize(matrices * columns);
      for (double& x : row_means) x *= 1 - fresh;
      for (double& x : column_means) x *= 1 - fresh;
      const auto each_element = [&](const auto& f) {
        for (std::size_t k = 0; k < n; ++k) f(k, k / columns, k / (rows * columns) * columns + k % columns);
      };
      each_element([&](std::size_t k, std::size_t row, std::size_t column) {
        row_means[row] += fresh * g[k] * g[k] / static_cast<double>(columns);
        column_means[column] += fresh * g[k] * g[k] / static_cast<double>(rows);
      });
      std::vector<double> mean(matrices);
      for (std::size_t i = 0; i < row_means.size(); ++i) mean[i / rows] += row_means[i] / static_cast<double>(rows);
      each_element([&](std::size_t k, std::size_t row, std::size_t column) {
        s[k] = row_means[row] * column_means[column] / std::max(mean[row / rows], eps1);
      });
    }
    std::vector<double> d(n);
    for (std::size_t i = 0; i < n; ++i) d[i] = g[i] / std::sqrt(std::max(s[i], eps1 * eps1));
    const double size = rule.relative_step ? std::min(lr, 1 / std::sqrt(t)) : lr;
    const double scale = rule.scale_parameter ? std::max(rule.eps2, rms_of(w)) : 1;
    const double factor = size * scale / std::max(1.0, rms_of(d) / rule.clip);
    for (std::size_t i = 0; i < n; ++i) {
      moment[i] = rule.beta1 * moment[i] + (1 - rule.beta1) * factor * d[i];
      w[i] = (1 - lr * rule.weight_decay) * w[i] - moment[i];
    }
  };
}

inline const std::vector<RuleRow>& rules() {
  static const std::vector<RuleRow> table = [] {
    std::vector<RuleRow> list;
    const auto rule = [&](const char* name, const nn::AnyRule& r, std::function<Steps()> steps) {
      list.push_back({name, {{"*", r}}, std::move(steps)});
    };
    using Kept = KeptNumbers;
    rule(
        "sgd", nn::Sgd{.lr = nn::linear(0.1, 0.01, 5), .weight_decay = 0.1},
        each([](double w, double g, Kept, int step) { return w - (0.1 - 0.018 * std::min(step, 5)) * (g + 0.1 * w); }));
    rule("momentum", nn::Sgd{.lr = 0.1, .momentum = 0.9, .weight_decay = 0.1},
         each([](double w, double g, Kept k, int) { return w - 0.1 * (k["v"] = 0.9 * k["v"] + g + 0.1 * w); }));
    rule("nesterov", nn::Sgd{.lr = 0.1, .momentum = 0.9, .nesterov = true}, each([](double w, double g, Kept k, int) {
           k["v"] = 0.9 * k["v"] + g;
           return w - 0.1 * (g + 0.9 * k["v"]);
         }));
    rule("adam", nn::Adam{.lr = 0.05, .weight_decay = 0.1}, each([](double w, double g, Kept k, int step) {
           return w - 0.05 * adam_direction(g + 0.1 * w, k, step, 0.999, 1e-8);
         }));
    rule("adamw", nn::AdamW{.lr = nn::cosine(0.05, 10), .beta2 = 0.95, .weight_decay = 0.1},
         each([](double w, double g, Kept k, int step) {
           const double lr = 0.05 * 0.5 * (1 + std::cos(std::numbers::pi * std::min(step, 10) / 10));
           return w * (1 - lr * 0.1) - lr * adam_direction(g, k, step, 0.95, 1e-8);
         }));
    rule("rms_prop", nn::RmsProp{.lr = 0.05, .weight_decay = 0.1}, each([](double w, double g, Kept k, int) {
           g += 0.1 * w;
           k["s"] = 0.99 * k["s"] + 0.01 * g * g;
           return w - 0.05 * g / (std::sqrt(k["s"]) + 1e-8);
         }));
    rule("rms_prop_momentum", nn::RmsProp{.lr = 0.05, .momentum = 0.8}, each([](double w, double g, Kept k, int) {
           k["s"] = 0.99 * k["s"] + 0.01 * g * g;
           return w - 0.05 * (k["v"] = 0.8 * k["v"] + g / (std::sqrt(k["s"]) + 1e-8));
         }));
    rule("adagrad", nn::Adagrad{.lr = 0.2, .weight_decay = 0.1}, each([](double w, double g, Kept k, int) {
           g += 0.1 * w;
           k["s"] += g * g;
           return w - 0.2 * g / (std::sqrt(k["s"]) + 1e-10);
         }));
    rule("lamb", nn::Lamb{.lr = 0.05, .weight_decay = 0.1}, [] { return lamb_steps(0.05, 0.1, true); });
    rule("lamb_not_adapted", nn::Lamb{.lr = 0.05, .adapt = false}, [] { return lamb_steps(0.05, 0.01, false); });
    const auto adafactor = [&](const char* name, const nn::Adafactor& r) {
      rule(name, r, [r] { return adafactor_steps(r); });
    };
    adafactor("adafactor", {.lr = nn::linear(0.5, 0.05, 5), .weight_decay = 0.1});
    adafactor("adafactor_moment", {.beta2_decay = -0.7, .eps1 = 0.3, .clip = 0.5, .beta1 = 0.9});
    adafactor("adafactor_absolute", {.eps2 = 2, .relative_step = false});
    adafactor("adafactor_unscaled", {.lr = 1, .scale_parameter = false});
    rule("lion", nn::Lion{.lr = 0.01, .weight_decay = 0.1}, each([](double w, double g, Kept k, int) {
           const double c = 0.9 * k["m"] + 0.1 * g;
           k["m"] = 0.99 * k["m"] + 0.01 * g;
           return w - 0.01 * ((c > 0) - (c < 0) + 0.1 * w);
         }));
    // For matrices alone.
    list.push_back({"muon", {{"weight|tall", nn::Muon{.lr = 0.1}}, {"*", nn::AdamW{.lr = 0.05}}}, {}});
    return list;
  }();
  return table;
}

}  // namespace sluice::test
