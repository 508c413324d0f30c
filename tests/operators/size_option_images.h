// Sizes that convolutions, poolings, layers and loaders are given. Included by option_sizes_test.cc.
#pragma once

#include <algorithm>
#include <string>
#include <type_traits>
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

/// Layers are given images of two channels, or rows of two numbers.
inline void add_layer_sizes(std::vector<SizeOption>& list) {
  // A layer's sizes are refused where it is made, by its parameters too, or where it is called.
  const auto add = [&](const char* name, const char* option, bool grows, auto make, auto call) {
    list.push_back({name,
                    option,
                    [=](Size n) {
                      const auto layer = make(n);
                      nn::initialise(layer, 1);
                      const nn::Evaluation off;
                      return Arrays{call(layer)};
                    },
                    grows,
                    {"nn::Parameter", "nn::fan_in"}});
  };
  const auto of = [](const Dims& shape) { return [shape](const auto& layer) { return layer(ones(shape)); }; };
  const auto row = of({3, 2}), line = of({1, 2, 5}), image = of({1, 2, 5, 5}), sequence = of({1, 3, 2});
  const auto two = [](const auto& layer) { return layer(ones({1, 3, 2}), ones({1, 4, 2})); };
  add(
      "linear", "in", true,
      [](Size n) {
        return nn::Linear{n, 2};
      },
      row);
  add(
      "linear", "out", true,
      [](Size n) {
        return nn::Linear{2, n};
      },
      row);
  const auto numbers = [](const nn::Embedding& layer) { return layer(zeros({3}, DType::i64)); };
  add(
      "embedding", "rows", true,
      [](Size n) {
        return nn::Embedding{n, 2};
      },
      numbers);
  add(
      "embedding", "width", true,
      [](Size n) {
        return nn::Embedding{2, n};
      },
      numbers);
  const auto add_convolution = [&]<class Layer>(std::type_identity<Layer>, const char* name, auto input) {
    add(
        name, "in of the layer", true, [](Size n) { return Layer{.in = n, .out = 2, .kernel = 2}; }, input);
    add(
        name, "out of the layer", true, [](Size n) { return Layer{.in = 2, .out = n, .kernel = 2}; }, input);
    add(
        name, "kernel of the layer", true, [](Size n) { return Layer{.in = 2, .out = 2, .kernel = n}; }, input);
    const bool transposed = requires(Layer layer) { layer.output_padding; };
    const auto add_option = [&](const char* option, bool grows, std::int64_t Layer::*field) {
      const auto make = [field](Size n) {
        Layer layer{.in = 2, .out = 2, .kernel = 2};
        layer.*field = n;
        return layer;
      };
      add(name, option, grows, make, input);
    };
    add_option("stride of the layer", transposed, &Layer::stride);
    add_option("padding of the layer", !transposed, &Layer::padding);
    add_option("dilation of the layer", transposed, &Layer::dilation);
    add(
        name, "groups of the layer", false, [](Size n) { return Layer{.in = 2, .out = 2, .kernel = 2, .groups = n}; },
        input);
  };
  add_convolution(std::type_identity<nn::Conv2d>(), "conv2d", image);
  add_convolution(std::type_identity<nn::Conv1d>(), "conv1d", line);
  add_convolution(std::type_identity<nn::ConvTranspose2d>(), "conv_transpose2d", image);
  add_convolution(std::type_identity<nn::ConvTranspose1d>(), "conv_transpose1d", line);
  add(
      "max_pool2d", "kernel of the layer", false, [](Size n) { return nn::MaxPool2d{n}; }, image);
  add(
      "max_pool2d", "stride of the layer", false,
      [](Size n) {
        return nn::MaxPool2d{2, n};
      },
      image);
  add(
      "max_pool2d", "padding of the layer", false,
      [](Size n) {
        return nn::MaxPool2d{2, 1, n};
      },
      image);
  add(
      "avg_pool2d", "kernel of the layer", false, [](Size n) { return nn::AvgPool2d{n}; }, image);
  add(
      "avg_pool2d", "stride of the layer", false,
      [](Size n) {
        return nn::AvgPool2d{2, n};
      },
      image);
  add(
      "avg_pool2d", "padding of the layer", false,
      [](Size n) {
        return nn::AvgPool2d{2, 1, n};
      },
      image);
  add(
      "adaptive_avg_pool2d", "height of the layer", true,
      [](Size n) {
        return nn::AdaptiveAvgPool2d{n, 2};
      },
      image);
  add(
      "adaptive_max_pool2d", "width of the layer", true,
      [](Size n) {
        return nn::AdaptiveMaxPool2d{2, n};
      },
      image);
  add(
      "layer_norm", "width", true, [](Size n) { return nn::LayerNorm{n}; }, row);
  add(
      "rms_norm", "width", true, [](Size n) { return nn::RmsNorm{n}; }, row);
  add(
      "group_norm", "channels", true,
      [](Size n) {
        return nn::GroupNorm{1, n};
      },
      image);
  add(
      "group_norm", "groups of the layer", false,
      [](Size n) {
        return nn::GroupNorm{n, 2};
      },
      image);
  add(
      "batch_norm", "channels", true, [](Size n) { return nn::BatchNorm{n}; }, image);
  add(
      "SelfAttention", "width", true, [](Size n) { return nn::SelfAttention{.width = n, .heads = 1}; }, sequence);
  add(
      "SelfAttention", "heads", false, [](Size n) { return nn::SelfAttention{.width = 2, .heads = n}; }, sequence);
  add(
      "SelfAttention", "kv_heads", false,
      [](Size n) { return nn::SelfAttention{.width = 2, .heads = 2, .kv_heads = n}; }, sequence);
  add(
      "CrossAttention", "width", true, [](Size n) { return nn::CrossAttention{.width = n, .heads = 1}; }, two);
  add(
      "CrossAttention", "heads", false, [](Size n) { return nn::CrossAttention{.width = 2, .heads = n}; }, two);
  add(
      "CrossAttention", "context", true,
      [](Size n) { return nn::CrossAttention{.width = 2, .heads = 1, .context = n}; }, two);
  add(
      "CrossAttention", "kv_heads", false,
      [](Size n) { return nn::CrossAttention{.width = 2, .heads = 2, .kv_heads = n}; }, two);
  const auto recurrent = [](const auto& layer) { return layer(ones({1, 3, 2}), layer.begin(3)).outputs; };
  add(
      "lstm", "in", true,
      [](Size n) {
        return nn::Lstm{n, 2};
      },
      recurrent);
  add(
      "lstm", "size", true,
      [](Size n) {
        return nn::Lstm{2, n};
      },
      recurrent);
  add(
      "gru", "in", true,
      [](Size n) {
        return nn::Gru{n, 2};
      },
      recurrent);
  add(
      "gru", "size", true,
      [](Size n) {
        return nn::Gru{2, n};
      },
      recurrent);
  list.push_back({"zeros", "sequences of a state", [](Size n) {
                    const nn::Gru layer{2, 2};
                    nn::initialise(layer, 1);
                    return Arrays{layer.begin(n)};
                  }});
  list.push_back({"zeros", "capacity of a cache", [](Size n) {
                    nn::KvCache cache{.capacity = n};
                    const NDArray x = ones({1, 1, 2, 2});
                    for (int i = 0; i < 2; ++i) cache.append(x, x, std::source_location::current());
                    return Arrays{cache.k, cache.v};
                  }});
  list.push_back({"nn::fan_in", "n",
                  [](Size n) {
                    const nn::Parameter w{{2}, nn::fan_in(n)};
                    nn::initialise(w, 1);
                    return Arrays{w.value()};
                  },
                  false});
}

inline void add_data_sizes(std::vector<SizeOption>& list) {
  const auto add = [&](const char* name, const char* option, bool grows, auto make) {
    list.push_back({name, option,
                    [make](Size n) {
                      auto made = make(n);
                      Arrays batches;
                      for (const nn::Batch& batch : made) batches.push_back(batch.x);
                      return batches;
                    },
                    grows});
  };
  const auto at_int = [](Size n) { return static_cast<int>(std::clamp<Size>(n, -9, 2147483647)); };
  const auto table = [] { return nn::Table{ones({5, 2}), ones({5})}; };
  add("nn::Loader", "batch", false, [=](Size n) { return nn::Loader(table(), {.batch = n}); });
  add("nn::Loader", "batch, without the last", false,
      [=](Size n) { return nn::Loader(table(), {.batch = n, .drop_last = true}); });
  add("nn::Loader", "prefetch", false, [=](Size n) { return nn::Loader(table(), {.prefetch = at_int(n)}); });
  const auto to_shape = [](const Dims& shape) {
    return nn::Map(
        [shape](const Dims&, DType dtype) {
          return nn::Map::Result{shape, dtype};
        },
        [](const TensorView&, const TensorView& out, const RandomKey&) {
          std::fill_n(out.as<float>(), out.count(), 1.0F);
        });
  };
  add("nn::Loader", "a map's shape", true, [=](Size n) { return nn::Loader(table(), {.x = to_shape({n, 2})}); });
  add("nn::Loader", "a map's shape whose count wraps", true, [=](Size n) {
    return nn::Loader(table(), {.x = to_shape({n, n})});
  });
  const auto tokens = [] { return zeros({9}, DType::u8); };
  for (const bool shuffle : {false, true}) {
    add("nn::Windows", "batch", false, [=](Size n) {
      return nn::Windows(tokens(), {.batch = n, .length = 2, .shuffle = shuffle, .follow = !shuffle});
    });
    add("nn::Windows", "length", false, [=](Size n) {
      return nn::Windows(tokens(), {.batch = 2, .length = n, .shuffle = shuffle, .follow = !shuffle});
    });
  }
  add("nn::Windows", "batch of what is cut", false,
      [=](Size n) { return nn::Windows(tokens(), {.batch = n, .length = 2}); });
  list.push_back({"nn::split", "test_rows",
                  [table](Size n) {
                    const nn::Split parts = nn::split(table(), n, 1);
                    return Arrays{parts.train.x, parts.test.y};
                  },
                  false});
  list.push_back({"pipeline", "microbatches",
                  [](Size n) {
                    const nn::Sequential net{nn::Linear{4, 2}};
                    nn::initialise(net, 1);
                    const NDArray x = ones({3, 4});
                    parallel::Pipeline pipeline(net, x.spec(), {.devices = {cpu(0)}});
                    return Arrays{
                        pipeline.step(x, zeros({3}, DType::i64),
                                      {.microbatches = static_cast<int>(std::clamp<Size>(n, 1, 2147483647))})};
                  },
                  false});
}

}  // namespace sluice::testing
