// Loads the library of examples/plugins while the program runs, and holds what the pages say of it: values against
// formulas, first and second gradients against finite differences, and which kernel a call gets.
#include <dlfcn.h>

#include <cmath>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "rms_norm.h"
#include "sluice/engine/detail/forks.h"
#include "sluice/operators/attributes.h"
#include "sluice/sluice.h"

using namespace sluice;

namespace {

using Values = std::vector<double>;
using Function = std::function<NDArray(const std::vector<NDArray>&)>;

int failures = 0;

void expect(bool holds, const std::string& what) {
  if (holds) return;
  std::printf("wrong: %s\n", what.c_str());
  ++failures;
}

void expect_near(const Values& got, const Values& wanted, double bound, const std::string& what) {
  expect(got.size() == wanted.size(), what + ": " + std::to_string(got.size()) + " values");
  for (std::size_t i = 0; i < std::min(got.size(), wanted.size()); ++i) {
    expect(std::abs(got[i] - wanted[i]) <= bound * (1 + std::abs(wanted[i])),
           what + " at " + std::to_string(i) + ": " + std::to_string(got[i]) + ", wanted " + std::to_string(wanted[i]));
  }
}

Values values_of(const NDArray& x) { return x.to(DType::f64).to_vector<double>(); }

/// Numbers in (-2, 2), the same everywhere.
Values numbers(std::int64_t n, unsigned seed) {
  Values list;
  for (std::int64_t i = 0; i < n; ++i) list.push_back(2 * std::sin(1.7 * static_cast<double>(i) + seed));
  return list;
}

std::vector<NDArray> arrays(const std::vector<Dims>& shapes, DType dtype = DType::f64) {
  std::vector<NDArray> list;
  for (std::size_t k = 0; k < shapes.size(); ++k) {
    list.push_back(from(numbers(shapes[k].count(), static_cast<unsigned>(k) + 1), shapes[k]).to(dtype));
  }
  return list;
}

/// The gradients of sum(f(xs) * r), r fixed, with respect to all inputs, one after the other.
NDArray gradients(const Function& f, const std::vector<NDArray>& xs, bool create_graph) {
  const NDArray y = f(xs);
  const NDArray r = from(numbers(y.count(), 9), y.shape());
  std::vector<NDArray> all;
  for (const NDArray& g : grad(sum(y * r), xs, {.create_graph = create_graph})) all.push_back(g.reshape({-1}));
  return concat(all, 0);
}

/// Compares the gradients with central differences of the function, and with `second` those of the gradients too.
void check_gradients(const std::string& name, const Function& f, const std::vector<Dims>& shapes, bool second = true) {
  std::vector<NDArray> xs = arrays(shapes);
  for (NDArray& x : xs) x.with_grad();
  const auto loss = [&](const std::vector<NDArray>& at) {
    const NDArray y = f(at);
    return sum(y * from(numbers(y.count(), 9), y.shape()));
  };
  const auto differences = [&](const std::function<double(const std::vector<NDArray>&)>& value) {
    Values found;
    for (std::size_t k = 0; k < shapes.size(); ++k) {
      for (std::size_t i = 0; i < static_cast<std::size_t>(shapes[k].count()); ++i) {
        const auto at = [&](double step) {
          std::vector<NDArray> moved = arrays(shapes);
          Values list = values_of(moved[k]);
          list[i] += step;
          moved[k] = from(list, shapes[k]);
          for (NDArray& x : moved) x.with_grad();
          return value(moved);
        };
        found.push_back((at(1e-5) - at(-1e-5)) / 2e-5);
      }
    }
    return found;
  };
  expect_near(values_of(gradients(f, xs, false)),
              differences([&](const auto& at) { return loss(at).template item<double>(); }), 1e-7,
              name + "'s gradient");
  if (!second) return;
  const auto of_gradients = [&](const std::vector<NDArray>& at) {
    const NDArray g = gradients(f, at, true);
    return sum(g * from(numbers(g.count(), 5), g.shape()));
  };
  std::vector<NDArray> all;
  for (const NDArray& g : grad(of_gradients(xs), xs)) all.push_back(g.reshape({-1}));
  expect_near(values_of(concat(all, 0)),
              differences([&](const auto& at) { return of_gradients(at).template item<double>(); }), 1e-6,
              name + "'s second gradient");
}

NDArray apply_named(const char* name, const NDArray& x, const Attributes& attributes = {}) {
  return apply(Registry::instance().get(name), {&x}, attributes);
}

void check_softsign() {
  const Function f = [](const std::vector<NDArray>& x) { return apply_named("softsign", x[0]); };
  const Dims shape{5, 7};
  for (const auto& [dtype, bound] : {std::pair{DType::f64, 1e-15}, {DType::f32, 1e-6}, {DType::f16, 2e-3}}) {
    const NDArray x = arrays({shape}, dtype)[0];
    Values wanted;
    for (const double value : values_of(x.transpose())) wanted.push_back(value / (1 + std::abs(value)));
    expect_near(values_of(f({x.transpose()})), wanted, bound, "softsign in " + std::string(name_of(dtype)));
  }
  check_gradients("softsign", f, {shape});
  const NDArray large = full({100000}, 3.0);  // several pieces
  expect_near({sum(f({large})).item<double>()}, {75000}, 1e-5, "softsign of many");
}

void check_soft_maximum() {
  const auto over = [](std::uint32_t axes, bool keep = false) {
    return [=](const std::vector<NDArray>& x) {
      return apply_named("soft_maximum", x[0], ReduceAttributes{axes, keep, 1});
    };
  };
  const NDArray x = arrays({{3, 4, 5}})[0];
  const Values list = values_of(x);
  Values rows, middle, middle_of_transposed;
  for (int i = 0; i < 3; ++i) {
    double all = 0;
    for (int k = 0; k < 20; ++k) all += std::exp(list[static_cast<std::size_t>(i * 20 + k)]);
    rows.push_back(std::log(all));
    for (int k = 0; k < 5; ++k) {
      double one = 0;
      for (int j = 0; j < 4; ++j) one += std::exp(list[static_cast<std::size_t>(i * 20 + j * 5 + k)]);
      middle.push_back(std::log(one));
    }
  }
  for (int k = 0; k < 5; ++k) {
    for (int i = 0; i < 3; ++i) middle_of_transposed.push_back(middle[static_cast<std::size_t>(i * 5 + k)]);
  }
  expect_near(values_of(over(6)({x})), rows, 1e-14, "soft_maximum over two axes");
  expect_near(values_of(over(2)({x})), middle, 1e-14, "soft_maximum over the middle");
  expect_near(values_of(over(2)({x.transpose()})), middle_of_transposed, 1e-14, "soft_maximum of a transposed view");
  expect(over(2, true)({x}).shape() == Dims({3, 1, 5}), "soft_maximum keeps an axis");
  expect(std::isinf(values_of(over(1)({zeros({0, 2})}))[1]), "soft_maximum over nothing");
  check_gradients("soft_maximum", over(2), {{3, 4, 5}});
  check_gradients("soft_maximum of all", over(7), {{3, 4, 5}});
}

void check_rms_norm() {
  const double eps = 0.1;
  const Function f = [=](const std::vector<NDArray>& x) {
    return apply(Registry::instance().get("rms_norm"), {&x[0], &x[1]}, mine::RmsNormAttributes{eps});
  };
  const std::vector<NDArray> xs = arrays({{2, 3, 4}, {4}});
  const Values x = values_of(xs[0]), weight = values_of(xs[1]);
  Values wanted;
  for (std::size_t row = 0; row < 6; ++row) {
    double squares = 0;
    for (std::size_t i = 0; i < 4; ++i) squares += x[row * 4 + i] * x[row * 4 + i];
    for (std::size_t i = 0; i < 4; ++i) wanted.push_back(x[row * 4 + i] / std::sqrt(squares / 4 + eps) * weight[i]);
  }
  expect_near(values_of(f(xs)), wanted, 1e-14, "rms_norm");
  check_gradients("rms_norm", f, {{2, 3, 4}, {4}});
  std::string said;
  try {
    f(arrays({{2, 3}, {4}}));
  } catch (const ArrayError& e) {
    said = e.what();
  }
  expect(said.find("[rms_norm] main.cc:") == 0 &&
             said.find(": (2, 3) x (4,): weight must have one element for each of the last axis") != std::string::npos,
         "rms_norm's error: " + said);
}

std::string kernel_for(const NDArray& a, const NDArray& b, MatmulAttributes attributes = {}) {
  const Operator& row = Registry::instance().get("matmul");
  const NDArray* const inputs[] = {&a, &b};
  const Attributes given(attributes);
  Signature call(row.name, std::source_location::current(), inputs, given);
  row.infer(call);
  return row.kernel(DeviceKind::cpu, call)->backend.name;
}

void check_backend() {
  const NDArray a = arrays({{16, 5}}, DType::f32)[0], b = arrays({{5, 24}}, DType::f32)[0];
  expect(kernel_for(a, b) == "tiled", "the highest rank goes first");
  expect(kernel_for(a.narrow(0, 0, 15), b) == "cpu", "a size that it does not take");
  expect(kernel_for(a.transpose(), b, {true, false}) == "cpu", "an attribute that it does not take");
  expect(kernel_for(a.to(DType::f64), b.to(DType::f64)) == "cpu", "a dtype that it does not have");
  const Values own = values_of(matmul(a, b));
  const KernelRankLimit limit(0);
  expect_near(own, values_of(matmul(a, b)), 1e-5, "the tiled product");
}

/// A lock that the program's code has taken is this thread's in the library's code too, and a fork is known there.
void check_hidden() {
  void* const library = dlopen(HIDDEN, RTLD_NOW);
  expect(library != nullptr, "the hidden library is loaded");
  if (!library) return;
  const auto forks = reinterpret_cast<const void* (*)()>(dlsym(library, "forks_of_hidden"));
  const auto lock = reinterpret_cast<void (*)(Array&)>(dlsym(library, "lock_in_hidden"));
  expect(forks() == &detail::fork_generation, "one number of forks");
  const NDArray x = zeros({2});
  const std::lock_guard held(x.array()->mutex());
  lock(*x.array());
}

}  // namespace

int main() {
  expect(!Registry::instance().find("softsign"), "no row before the library is loaded");
  void* const library = dlopen(MY_OPERATORS, RTLD_NOW);
  if (!library) {
    std::printf("%s\n", dlerror());
    return 1;
  }
  check_softsign();
  check_soft_maximum();
  check_rms_norm();
  check_backend();
  check_hidden();
  // Its rows are there for good, and so it is.
  dlclose(library);
  check_softsign();
  check_backend();
  // The same gradients where the CPU's fast kernels are not used, as on simulated devices.
  const KernelRankLimit reference(0);
  check_rms_norm();
  std::printf("%d failures\n", failures);
  return failures == 0 ? 0 : 1;
}
