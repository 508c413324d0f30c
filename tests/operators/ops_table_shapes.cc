// Cases of indexing by arrays, and of the functions that cut, join, repeat and pad arrays.
#include <cstdint>
#include <utility>
#include <vector>

#include "ops_table.h"

namespace sluice::testing {

void add_shape_cases(std::vector<OperatorCase>& list) {
  const Dims s{5, 7}, cube{3, 4, 5};
  const auto add = [&](std::string name, std::vector<Dims> shapes, std::function<NDArray(const Arrays&)> call) {
    list.push_back({std::move(name), std::move(shapes), std::move(call)});
  };
  add("x(rows)", {s}, [](const Arrays& x) { return square(x[0](numbers({4, 0, -1, 2}, {2, 2}))); });
  add("x(all, columns)", {s}, [](const Arrays& x) { return square(x[0](all, numbers({6, 0, -7}, {3}))); });
  add("x(rows, columns)", {cube}, [](const Arrays& x) {
    return square(x[0](numbers({2, 0}, {2, 1}), numbers({-1, 0, 3}, {3}), slice(1, 5, 2)));
  });
  add("x(all, rows) of a view", {cube}, [](const Arrays& x) {
    return square(x[0].transpose()(slice(4, 0, -2), numbers({1, 1, 3}, {3}), newaxis));
  });
  add("x(mask)", {s}, [](const Arrays& x) { return square(x[0](x[0].detach() > 0.3)); });
  add("x(1, mask)", {cube}, [](const Arrays& x) {
    return square(x[0](all, from<bool>({true, false, true, true}, {4}), slice_from(2)));
  });
  add("x(rows) = y", {s, {4, 7}}, [](const Arrays& x) {
    const NDArray y = x[0] * 2;
    y(numbers({1, 3, 1, -1}, {4})) = x[1];
    return square(y);
  });
  add("x(rows) = y, broadcast, to a view", {cube, {2, 1}}, [](const Arrays& x) {
    const NDArray y = x[0] * 2;
    y(slice(0, 3, 2), all, numbers({0, 3, 0}, {3})) = x[1](newaxis, numbers({0, 1, 1, 0}, {4}));
    return square(y);
  });
  add("x(rows) += y", {s, {4, 7}}, [](const Arrays& x) {
    const NDArray y = x[0] * 2;
    y(numbers({1, 3, 1, -1}, {4})) += x[1];
    return square(y);
  });
  add("x(rows) *= y", {s, {2, 7}}, [](const Arrays& x) {
    const NDArray y = x[0] * 2;
    y(numbers({1, 3}, {2})) *= x[1];
    y(numbers({0, 1}, {2})) -= 0.5;
    return square(y);
  });
  add("x(mask) = y", {s, {1}}, [](const Arrays& x) {
    const NDArray y = x[0] * 2, mask = x[0].detach() > 0;
    y(mask) = x[1];
    y(from<bool>({true, false, false, false, true}, {5})) += 1;
    return square(y);
  });
  add("put_rows", {s}, [](const Arrays& x) {
    return square(scatter(x[0] * x[0], 0, numbers({4, 0, 4, 1}, {2, 2}), x[0]));
  });
  add("gather", {s}, [](const Arrays& x) { return square(gather(x[0], 1, numbers({0, 6, -1, 0, 2, 2}, {3, 2}))); });
  add("gather, axis 0", {cube}, [](const Arrays& x) {
    return square(gather(x[0], 0, numbers({0, 2, 1, -1, 1, 1, 0, 2}, {4, 1, 2})));
  });
  add("scatter", {s, {2, 3}}, [](const Arrays& x) {
    return square(scatter(x[0], -1, numbers({0, 0, 6, 3, 1, -4}, {2, 3}), x[1]));
  });
  add("scatter of a number", {s}, [](const Arrays& x) {
    return square(scatter(x[0], -1, numbers({0, 0, 6, 3, 1, -4}, {2, 3}), 0.5));
  });
  add("scatter_add", {s, {3, 4}}, [](const Arrays& x) {
    return square(scatter_add(x[0], 0, numbers({0, 0, 4, 3, 1, -4}, {2, 3}), x[1]));
  });
  add("index_select", {cube}, [](const Arrays& x) { return square(index_select(x[0], 1, numbers({3, 0, 3}, {3}))); });
  add("index_add", {cube, {3, 3, 5}}, [](const Arrays& x) {
    return square(index_add(x[0], 1, numbers({3, 0, 3}, {3}), x[1]));
  });
  add("take", {s}, [](const Arrays& x) { return square(take(x[0], numbers({34, 0, -2, 7}, {2, 2}))); });
  add("masked_fill", {s}, [](const Arrays& x) { return square(masked_fill(x[0], x[0].detach() > 0, 0.5)); });
  add("masked_select", {s}, [](const Arrays& x) { return square(masked_select(x[0], x[0].detach() > 0)); });
  add("masked_select of a size", {s}, [](const Arrays& x) {
    const NDArray mask = x[0].detach() > 0;
    return concat({square(masked_select(x[0], mask, {.size = 4})), square(masked_select(x[0], mask, {.size = 40}))}, 0);
  });
  // Views.
  add("newaxis and ellipsis", {cube}, [](const Arrays& x) { return square(x[0](newaxis, ellipsis, slice(1, 4))); });
  add("flip", {cube}, [](const Arrays& x) { return square(x[0].flip({0, -1})); });
  add("diagonal", {cube}, [](const Arrays& x) { return square(x[0].diagonal(1, 0, 2)); });
  add("unfold", {s}, [](const Arrays& x) { return square(x[0].unfold(1, 3, 2)); });
  add("swapaxes, movedim, squeeze", {{1, 3, 4, 1}},
      [](const Arrays& x) { return square(x[0].movedim(1, -1).swapaxes(0, 1).squeeze()); });
  // Rearranging.
  add("split", {s}, [](const Arrays& x) {
    const std::vector<NDArray> parts = split(x[0], {2, 5}, 1);
    return square(parts[0]) + sum(parts[1]);
  });
  add("chunk", {s}, [](const Arrays& x) { return square(chunk(x[0], 3).back()); });
  add("pad", {s}, [](const Arrays& x) { return square(pad(x[0], {{1, 0}, {2, 3}}, {.value = 0.5})); });
  add("pad, edge", {s}, [](const Arrays& x) { return square(pad(x[0], {{1, 0}, {2, 3}}, {PadMode::edge})); });
  add("pad, reflect", {s}, [](const Arrays& x) { return square(pad(x[0], {{1, 4}, {0, 3}}, {PadMode::reflect})); });
  add("pad, wrap", {s}, [](const Arrays& x) { return square(pad(x[0], {{1, 6}, {9, 0}}, {PadMode::wrap})); });
  add("roll", {s}, [](const Arrays& x) { return square(roll(x[0], -9, 1)); });
  add("tile", {s}, [](const Arrays& x) { return square(tile(x[0], {2, 1, 3})); });
  add("repeat", {cube}, [](const Arrays& x) { return square(repeat(x[0], 3, 1)); });
  add("meshgrid", {{3}, {4}}, [](const Arrays& x) {
    const std::vector<NDArray> grids = meshgrid(x);
    return square(grids[0]) * grids[1];
  });
  add("tril", {s}, [](const Arrays& x) { return square(tril(x[0], 1)); });
  add("triu", {cube}, [](const Arrays& x) { return square(triu(x[0], -1)); });
}

}  // namespace sluice::testing
