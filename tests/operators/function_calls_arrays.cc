// Calls of the members of NDArray and of the functions of ndarray/.
#include <filesystem>
#include <sstream>

#include "../support/temporary_directory.h"
#include "function_calls.h"
#include "sluice/ndarray/owner.h"

namespace sluice::testing {

void add_view_calls(FunctionCalls& to) {
  const Dims s{3, 4};
  using A = const Arrays&;
  to.view("operator()", {s}, [](A x) { return Arrays{x[0](1), x[0](all, slice(0, 2)), x[0](newaxis)}; });
  to.view("index_view", {s}, [](A x) { return Arrays{x[0].index_view({})}; });
  to.list().back().shown = "index";
  to.view("narrow", {s}, [](A x) { return Arrays{x[0].narrow(0, 0, 2)}; });
  to.view("permute", {s}, [](A x) { return Arrays{x[0].permute({1, 0})}; });
  to.view("transpose", {s}, [](A x) { return Arrays{x[0].transpose()}; });
  to.view("broadcast_to", {s}, [](A x) { return Arrays{x[0].broadcast_to({2, 3, 4})}; });
  to.view("squeeze", {{1, 3}}, [](A x) { return Arrays{x[0].squeeze()}; });
  to.view("squeeze", {{1, 3}}, [](A x) { return Arrays{x[0].squeeze(0)}; });
  to.view("unsqueeze", {s}, [](A x) { return Arrays{x[0].unsqueeze(0)}; });
  to.view("swapaxes", {s}, [](A x) { return Arrays{x[0].swapaxes(0, 1)}; });
  to.view("movedim", {s}, [](A x) { return Arrays{x[0].movedim(0, 1)}; });
  to.view("flip", {s}, [](A x) { return Arrays{x[0].flip()}; });
  to.view("diagonal", {s}, [](A x) { return Arrays{x[0].diagonal()}; });
  to.view("unfold", {s}, [](A x) { return Arrays{x[0].unfold(1, 2, 1)}; });
  to.view("reshape", {s}, [](A x) { return Arrays{x[0].reshape({4, 3})}; });
  to.view("flatten", {s}, [](A x) { return Arrays{x[0].flatten()}; });
  to.view("strided", {s}, [](A x) { return Arrays{x[0].strided({2}, {1}, 0)}; });
  to.view("contiguous", {s}, [](A x) { return Arrays{x[0].contiguous()}; });
  to.view("to", {s}, [](A x) { return Arrays{x[0].to(x[0].defined() ? x[0].device() : cpu(0))}; });
  to.view("to", {s}, [](A x) { return Arrays{x[0].to(DType::f32)}; });
  to.add("to", {s}, [](A x) { return Arrays{x[0].to(DType::f64)}; });
  to.add("copy", {s}, [](A x) { return Arrays{x[0].copy()}; });
  to.add("detach", {s}, [](A x) { return Arrays{x[0].detach()}; });
  // What it is.
  to.view("size", {s}, [](A x) { return Arrays(static_cast<std::size_t>(x[0].size(0) * 0)); });
  to.view("len", {s}, [](A x) { return Arrays(static_cast<std::size_t>(len(x[0]) * 0)); });
  to.list().back().shown = "size";
  to.view("bytes", {s}, [](A x) { return Arrays(x[0].bytes() * 0); });
  to.view("dtype", {s}, [](A x) { return Arrays(static_cast<std::size_t>(x[0].dtype()) * 0); });
  to.view("device", {s}, [](A x) { return Arrays(static_cast<std::size_t>(x[0].device().index) * 0); });
  to.view("spec", {s}, [](A x) { return Arrays(x[0].spec().shape.size() * 0); });
  to.view("engine", {s}, [](A x) { return Arrays(reinterpret_cast<std::size_t>(&x[0].engine()) * 0); });
}

/// They write to their first arrays.
void add_write_calls(FunctionCalls& to) {
  const Dims s{3, 4};
  const auto add = [&](auto write) {
    to.view("in place", {s, s}, [write](const Arrays& x) {
      NDArray y = x[0];
      write(y, x[1]);
      return Arrays{};
    });
  };
  add([](NDArray& y, const NDArray& x) { y.assign(x); });
  to.list().back().name = "assign";
  add([](NDArray& y, const NDArray& x) { y += x; });
  add([](NDArray& y, const NDArray& x) { y -= x; });
  add([](NDArray& y, const NDArray& x) { y *= x; });
  add([](NDArray& y, const NDArray& x) { y /= x; });
  add([](NDArray& y, const NDArray& x) { y(all) = x; });
  to.list().back().name = "operator=";
  const auto add_number = [&](const char* name, DType dtype, auto write) {
    to.add(
          name, [s, dtype] { return Arrays{FunctionCalls::numbers_of(s).to(dtype)}; },
          [write](const Arrays& x) {
            NDArray y = x[0];
            write(y);
            return Arrays{};
          })
        .view = true;
  };
  add_number("fill", DType::f32, [](NDArray& y) { y.fill(1); });
  add_number("in place", DType::f32, [](NDArray& y) { y += 1; });
  add_number("in place", DType::f32, [](NDArray& y) { y -= 1; });
  add_number("in place", DType::f32, [](NDArray& y) { y *= 1; });
  add_number("in place", DType::f32, [](NDArray& y) { y /= 1; });
  add_number("in place", DType::i32, [](NDArray& y) { y &= 1; });
  add_number("in place", DType::i32, [](NDArray& y) { y |= 1; });
  add_number("in place", DType::i32, [](NDArray& y) { y ^= 1; });
  add_number("operator=", DType::f32, [](NDArray& y) { y(all) = 1; });
  const auto add_bits = [&](auto write) {
    to.add(
          "in place",
          [s] {
            return Arrays{FunctionCalls::places_of(s, 5), FunctionCalls::places_of(s, 3)};
          },
          [write](const Arrays& x) {
            NDArray y = x[0];
            write(y, x[1]);
            return Arrays{};
          })
        .view = true;
  };
  add_bits([](NDArray& y, const NDArray& x) { y &= x; });
  add_bits([](NDArray& y, const NDArray& x) { y |= x; });
  add_bits([](NDArray& y, const NDArray& x) { y ^= x; });
  // By indices, and by masks of several elements and of one.
  const auto add_indexed = [&](auto write) {
    for (const bool mask : {false, true}) {
      to.add(
            "operator()",
            [s, mask] {
              const NDArray places = FunctionCalls::places_of({3}, 3);
              return Arrays{FunctionCalls::numbers_of(s), mask ? FunctionCalls::numbers_of(s) > 0.5 : places,
                            FunctionCalls::numbers_of({1})};
            },
            [write](const Arrays& x) {
              write(x[0], x[1], x[2]);
              return Arrays{};
            })
          .view = true;
    }
  };
  add_indexed([](const NDArray& x, const NDArray& i, const NDArray& y) { x(i) = y; });
  add_indexed([](const NDArray& x, const NDArray& i, const NDArray& y) { x(i) += y; });
  add_indexed([](const NDArray& x, const NDArray& i, const NDArray& y) { x(i) -= y; });
  add_indexed([](const NDArray& x, const NDArray& i, const NDArray& y) { x(i) *= y; });
  add_indexed([](const NDArray& x, const NDArray& i, const NDArray& y) { x(i) /= y; });
  add_indexed([](const NDArray& x, const NDArray& i, const NDArray& y) {
    x(i) = 1;
    x(i) += 1;
    x(i) -= y;
  });
  add_indexed([](const NDArray& x, const NDArray& i, const NDArray& y) {
    x(i) *= 2;
    x(i) /= 2;
    x(i) = y;
  });
}

void add_host_calls(FunctionCalls& to) {
  const Dims s{3, 4};
  const auto of_host = [&](const char* name, const Dims& shape, auto use) {
    to.view(name, {shape}, [use](const Arrays& x) {
      use(x[0]);
      return Arrays{};
    });
  };
  of_host("wait", s, [](const NDArray& x) { x.wait(); });
  of_host("item", {}, [](const NDArray& x) { (void)x.item<float>(); });
  of_host("to_vector", s, [](const NDArray& x) { (void)x.to_vector<float>(); });
  of_host("to_bytes", s, [](const NDArray& x) { (void)x.to_bytes(); });
  of_host("borrow", s, [](const NDArray& x) { (void)x.borrow<const float>(); });
  of_host("to_string", s, [](const NDArray& x) { (void)x.to_string(); });
  of_host("operator<<", s, [](const NDArray& x) {
    std::ostringstream text;
    text << x;
  });
  of_host("operator<<", s, [](const NDArray& x) {
    std::ostringstream text;
    text << x(FunctionCalls::places_of({2}, 2));
  });
  of_host("variable_of", s, [](const NDArray& x) { (void)variable_of(x); });
  to.list().back().shown = "variable";
  of_host("each_variable_of", s, [](const NDArray& x) { each_variable_of(x, [](const Variable&) {}); });
  to.list().back().shown = "variable";
  of_host("wait", s, [](const NDArray& x) { default_engine().wait(x); });
  to.list().back().shown = "variable";
  of_host("to_dlpack", s, [](const NDArray& x) {
    auto* const tensor = to_dlpack(x);
    tensor->deleter(tensor);
  });
  of_host("to_dlpack_unversioned", s, [](const NDArray& x) {
    auto* const tensor = to_dlpack_unversioned(x);
    tensor->deleter(tensor);
  });
  to.list().back().shown = "to_dlpack";
  of_host("to_dlpack_writable", s, [](const NDArray& x) {
    auto* const tensor = to_dlpack_writable(x);
    tensor->deleter(tensor);
  });
  of_host("save_npy", s, [](const NDArray& x) {
    const test::TemporaryDirectory folder;
    save_npy(folder.path() / "x.npy", x);
  });
  of_host("save_npz", s, [](const NDArray& x) {
    const test::TemporaryDirectory folder;
    save_npz(folder.path() / "x.npz", {{"a", ones({2})}, {"b", x}});
  });
  of_host("save_arrays", s, [](const NDArray& x) {
    const test::TemporaryDirectory folder;
    save_arrays(folder.path() / "x.safetensors", {{"a", ones({2})}, {"b", x}});
  });
  const auto placed = [](const NDArray& x) { return x.defined() ? place(x, Mesh({{"x", 1}}, {x.device()})) : x; };
  to.add("place", {s}, [](const Arrays& x) {
    return shards_of(place(x[0], x[0].defined() ? Mesh({{"x", 1}}, {x[0].device()}) : Mesh()));
  });
  to.add("layout_of", {s}, [](const Arrays& x) {
    (void)layout_of(x[0]);
    return Arrays{};
  });
  to.add("reshard", {s}, [placed](const Arrays& x) { return shards_of(reshard(placed(x[0]), {{"x", shard(0)}})); });
  to.add("reshard", {s}, [placed](const Arrays& x) {
    const NDArray y = placed(x[0]);
    return shards_of(reshard(y, y.defined() ? layout_of(y) : Layout()));
  });
  to.add("with_call_layout", {s}, [placed](const Arrays& x) {
    const NDArray y = placed(x[0]);
    return shards_of(with_call_layout(y, y.defined() ? layout_of(y).with({{"x", shard(0)}}) : Layout()));
  });
  to.add("call_layout_of", {s}, [](const Arrays& x) {
    (void)call_layout_of(x[0]);
    return Arrays{};
  });
  to.add("set_gradient_layout", {s}, [placed](const Arrays& x) {
    const NDArray y = placed(x[0]);
    if (y.defined()) y.with_grad();
    set_gradient_layout(y, y.defined() ? layout_of(y).with({{"x", shard(0)}}) : Layout());
    return Arrays{};
  });
  to.add("per_shard", {s, s}, [placed](const Arrays& x) {
    const auto f = [](const NDArray& a, const NDArray& b) { return a * b; };
    return shards_of(per_shard(f, {placed(x[0]), placed(x[1])}, {}));
  });
  to.add("per_shard_all", {s}, [placed](const Arrays& x) {
      return shards_of(per_shard_all([](const NDArray& a) { return a * 2; }, {placed(x[0])}, {Placements{}})[0]);
    }).shown = "per_shard";
  to.add("gathered", {s}, [placed](const Arrays& x) { return Arrays{gathered(placed(x[0]))}; });
  to.add("whole", {s}, [placed](const Arrays& x) { return shards_of(whole(placed(x[0]))); });
  to.add("shards_of", {s}, [placed](const Arrays& x) { return shards_of(placed(x[0])); });
  to.view("owner_of", {s}, [](const Arrays& x) {
    (void)owner_of(x[0]);
    return Arrays{};
  });
  to.view("copy_held_values", {s}, [](const Arrays& x) {
    copy_held_values(x, std::source_location::current());
    return Arrays{};
  });
  to.list().back().shown = "copy on write";
  to.view("push_op", {s, s, s, s}, [](const Arrays& x) {
    push_op([](ArrayContext&) {}, {x[0], x[1]}, {x[2], x[3]}, {.name = "push_op"});
    return Arrays{};
  });
}

}  // namespace sluice::testing
