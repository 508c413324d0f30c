// Sizes that convolutions, poolings, layers and loaders are given. Included by option_sizes_test.cc.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "size_option.h"

namespace sluice::testing {

/// The call with a value along both axes of the image, along one, and along the other.
template <class Call>
void add_of_image(std::vector<SizeOption>& list, const char* name, const char* option, bool grows, Call call) {
  const auto image = [] { return arange(0, 50, 1, DType::f32).reshape({1, 2, 5, 5}); };
  for (int axes = 1; axes <= 3; ++axes) {
    list.push_back({name,
                    std::string(option) + (axes == 1   ? " of rows"
                                           : axes == 2 ? " of columns"
                                                       : ""),
                    [=](Size n) {
                      const auto at = [&](Size other) {
                        return Size2d((axes & 1) != 0 ? n : other, (axes & 2) != 0 ? n : other);
                      };
                      return Arrays{call(image(), at)};
                    },
                    grows});
  }
}

inline void add_image_sizes(std::vector<SizeOption>& list) {
  const auto w = [] { return ones({2, 2, 3, 3}); };
  const auto add = [&](const char* name, const char* option, bool grows, auto call) {
    add_of_image(list, name, option, grows, call);
  };
  using X = const NDArray&;
  add("conv2d", "stride", false, [=](X x, auto at) { return conv2d(x, w(), {}, {.stride = at(1)}); });
  add("conv2d", "stride, padded", false,
      [=](X x, auto at) { return conv2d(x, w(), {}, {.stride = at(1), .padding = 1}); });
  add("conv2d", "padding", true, [=](X x, auto at) { return conv2d(x, w(), {}, {.padding = at(0)}); });
  add("conv2d", "padding and stride", false,
      [=](X x, auto at) { return conv2d(x, w(), {}, {.stride = at(1), .padding = at(0)}); });
  add("conv2d", "dilation", false, [=](X x, auto at) { return conv2d(x, w(), {}, {.dilation = at(1)}); });
  add("conv2d", "dilation of one tap", false, [=](X x, auto at) {
    return conv2d(x, ones({2, 2, 1, 1}), {}, {.dilation = at(1)});
  });
  add("conv_transpose2d", "stride", true,
      [=](X x, auto at) { return conv_transpose2d(x, w(), {}, {.stride = at(1)}); });
  add("conv_transpose2d", "stride of one element", false, [=](X x, auto at) {
    return conv_transpose2d(x(all, all, slice(0, 1), slice(0, 1)), w(), {}, {.stride = at(1)});
  });
  add("conv_transpose2d", "padding", false,
      [=](X x, auto at) { return conv_transpose2d(x, w(), {}, {.padding = at(0)}); });
  add("conv_transpose2d", "output_padding", true,
      [=](X x, auto at) { return conv_transpose2d(x, w(), {}, {.output_padding = at(0)}); });
  add("conv_transpose2d", "stride and output_padding", true, [=](X x, auto at) {
    return conv_transpose2d(
        x(all, all, slice(0, 1), slice(0, 1)), w(), {},
        {.stride = at(1),
         .output_padding = Size2d(std::max<Size>(at(1).height, 1) - 1, std::max<Size>(at(1).width, 1) - 1)});
  });
  add("conv_transpose2d", "dilation", true,
      [=](X x, auto at) { return conv_transpose2d(x, w(), {}, {.dilation = at(1)}); });
  add("unfold2d", "kernel", true, [](X x, auto at) { return unfold2d(x, at(1)); });
  add("unfold2d", "stride", false, [](X x, auto at) { return unfold2d(x, 2, {.stride = at(1)}); });
  add("unfold2d", "padding", true, [](X x, auto at) { return unfold2d(x, 2, {.padding = at(0)}); });
  add("unfold2d", "dilation", false, [](X x, auto at) { return unfold2d(x, 2, {.dilation = at(1)}); });
  for (const bool ceil : {false, true}) {
    add("max_pool2d", "kernel", ceil, [ceil](X x, auto at) { return max_pool2d(x, at(2), {.ceil_mode = ceil}); });
    add("max_pool2d", "kernel with a stride", ceil,
        [ceil](X x, auto at) { return max_pool2d(x, at(2), {.stride = 1, .ceil_mode = ceil}); });
    add("max_pool2d", "stride", false,
        [ceil](X x, auto at) { return max_pool2d(x, 2, {.stride = at(1), .ceil_mode = ceil}); });
    add("max_pool2d", "padding", false,
        [ceil](X x, auto at) { return max_pool2d(x, 3, {.padding = at(0), .ceil_mode = ceil}); });
    add("max_pool2d", "dilation", false,
        [ceil](X x, auto at) { return max_pool2d(x, 2, {.ceil_mode = ceil, .dilation = at(1)}); });
    add("avg_pool2d", "kernel", ceil, [ceil](X x, auto at) { return avg_pool2d(x, at(2), {.ceil_mode = ceil}); });
    add("avg_pool2d", "stride", false,
        [ceil](X x, auto at) { return avg_pool2d(x, 2, {.stride = at(1), .ceil_mode = ceil}); });
    add("avg_pool2d", "padding", false, [ceil](X x, auto at) {
      return avg_pool2d(x, 3, {.padding = at(0), .count_padding = !ceil, .ceil_mode = ceil});
    });
  }
  add("adaptive_avg_pool2d", "the result's size", true, [](X x, auto at) { return adaptive_avg_pool2d(x, at(2)); });
  add("adaptive_max_pool2d", "the result's size", true, [](X x, auto at) { return adaptive_max_pool2d(x, at(2)); });

  const auto line = [&](const char* name, const char* option, auto call) {
    list.push_back({name, option, [call](Size n) { return Arrays{call(ones({1, 2, 5}), ones({2, 2, 3}), n)}; }});
  };
  line("conv1d", "stride", [](X x, X v, Size n) { return conv1d(x, v, {}, {.stride = n}); });
  line("conv1d", "padding", [](X x, X v, Size n) { return conv1d(x, v, {}, {.padding = n}); });
  line("conv1d", "dilation", [](X x, X v, Size n) { return conv1d(x, v, {}, {.dilation = n}); });
  line("conv1d", "groups", [](X x, X v, Size n) { return conv1d(x, v, {}, {.groups = n}); });
  line("conv_transpose1d", "stride", [](X x, X v, Size n) { return conv_transpose1d(x, v, {}, {.stride = n}); });
  line("conv_transpose1d", "groups", [](X x, X v, Size n) { return conv_transpose1d(x, v, {}, {.groups = n}); });
  line("conv_transpose1d", "groups of nothing", [](X, X, Size n) {
    return conv_transpose1d(ones({1, 0, 5}), ones({0, 4, 3}), {}, {.groups = n});
  });
}

inline void add_layer_sizes(std::vector<SizeOption>& list) {
  const auto add = [&](const char* name, const char* option, bool grows, auto make, const Dims& shape) {
    list.push_back({name, option,
                    [=](Size n) {
                      RandomStream stream(1);
                      const auto layer = make(n, stream);
                      return Arrays{layer->forward(ones(shape))};
                    },
                    grows});
  };
  using Stream = RandomStream&;
  const Dims image{1, 2, 5, 5};
  add("Linear", "in", true, [](Size n, Stream s) { return std::unique_ptr<Module>(new Linear(n, 2, s)); }, {3, 2});
  add("Linear", "out", true, [](Size n, Stream s) { return std::unique_ptr<Module>(new Linear(2, n, s)); }, {3, 2});
  add(
      "Conv2d", "in", true, [](Size n, Stream s) { return std::unique_ptr<Module>(new Conv2d(n, 2, 2, s)); }, image);
  add(
      "Conv2d", "out", true, [](Size n, Stream s) { return std::unique_ptr<Module>(new Conv2d(2, n, 2, s)); }, image);
  add(
      "Conv2d", "kernel", true, [](Size n, Stream s) { return std::unique_ptr<Module>(new Conv2d(2, 2, n, s)); },
      image);
  add(
      "conv2d", "stride of the layer", false,
      [](Size n, Stream s) { return std::unique_ptr<Module>(new Conv2d(2, 2, 2, s, ConvOptions{.stride = n})); },
      image);
  add(
      "conv2d", "padding of the layer", true,
      [](Size n, Stream s) { return std::unique_ptr<Module>(new Conv2d(2, 2, 2, s, ConvOptions{.padding = n})); },
      image);
  add(
      "max_pool2d", "kernel of the layer", false,
      [](Size n, Stream) { return std::unique_ptr<Module>(new MaxPool2d(n)); }, image);
  add(
      "max_pool2d", "stride of the layer", false,
      [](Size n, Stream) { return std::unique_ptr<Module>(new MaxPool2d(2, n)); }, image);
  const auto loader = [&](const char* option, auto options) {
    list.push_back({"DataLoader", option,
                    [options](Size n) {
                      DataLoader made(ones({5, 2}), ones({5}), options(n));
                      Arrays batches;
                      for (const Batch& batch : made) batches.push_back(batch.x);
                      return batches;
                    },
                    false});
  };
  loader("batch", [](Size n) { return DataLoaderOptions{.batch = n, .scale = 1}; });
  loader("batch, without the last",
         [](Size n) { return DataLoaderOptions{.batch = n, .drop_last = true, .scale = 1}; });
  loader("sample_shape", [](Size n) { return DataLoaderOptions{.sample_shape = {n, 2}, .scale = 1}; });
  loader("sample_shape whose count wraps", [](Size n) {
    return DataLoaderOptions{.sample_shape = {n, n}, .scale = 1};
  });
  loader("prefetch", [](Size n) {
    return DataLoaderOptions{.prefetch = static_cast<int>(std::clamp<Size>(n, -9, 2147483647)), .scale = 1};
  });
  list.push_back({"pipeline", "microbatches",
                  [](Size n) {
                    RandomStream stream(1);
                    parallel::Pipeline net({{std::make_shared<Linear>(4, 2, stream), cpu(0)}});
                    return Arrays{net.step(ones({3, 4}), zeros({3}, DType::i64),
                                           {.microbatches = static_cast<int>(std::clamp<Size>(n, 1, 2147483647))})};
                  },
                  false});
}

}  // namespace sluice::testing
