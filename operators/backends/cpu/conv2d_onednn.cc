// Convolution by oneDNN (f32): primitives of one thread each, on chunks of the batch, in its own blocked layouts.
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "sluice/engine/detail/forks.h"
#include "sluice/operators/backends/cpu/conv2d_parts.h"
#include "sluice/operators/backends/cpu/dispatch.h"
#include "sluice/operators/backends/cpu/onednn.h"

namespace sluice::cpu_backend::conv {
namespace {

using std::int64_t;
using Desc = dnnl::memory::desc;
using Tag = dnnl::memory::format_tag;

std::size_t rounded(std::size_t bytes) { return (bytes + 63) / 64 * 64; }

// One array of a primitive: as the caller has it, as the primitive wants it, and the way between the two.
struct Operand {
  Operand() = default;
  Operand(const Desc& outside, const Desc& inside, bool is_output) : plain(outside), blocked(inside) {
    if (plain == blocked) return;
    const auto& engine = onednn_engine();
    const Desc& from = is_output ? blocked : plain;
    const Desc& to = is_output ? plain : blocked;
    const dnnl::reorder::primitive_desc description(engine, from, engine, to, own_scratch());
    scratch = description.scratchpad_desc();
    turn = dnnl::reorder(description);
    bytes = rounded(blocked.get_size());
  }
  Desc plain, blocked, scratch;
  dnnl::reorder turn;
  std::size_t bytes = 0;  // of the blocked copy; 0 where the plain array serves as it is
};

struct Plan {
  dnnl::primitive primitive;
  Operand x, w, y;
  Desc bias, scratch;
  std::size_t scratch_bytes = 0;  // for the primitive or a reorder, whichever wants more
};

// A job is cut into pieces: of the batch, and, where few images meet large weights, also of the channels that are made
// (output channels; input channels for the input's gradient). s has the piece's sizes, `whole` that axis' full size.
struct Key {
  Conv2dPass pass;
  Algorithm algorithm;
  bool bias;
  Conv2dShape s;
  int64_t whole;
  auto tied() const {
    return std::tie(pass, algorithm, bias, whole, s.batch, s.in_channels, s.height, s.width, s.out_channels, s.kernel_h,
                    s.kernel_w, s.stride_h, s.stride_w, s.pad_h, s.pad_w);
  }
  bool operator<(const Key& other) const { return tied() < other.tied(); }
};

// The memory of a piece of a row-major four-dimensional array whose second axis has `channels` elements in all.
Desc plain_piece(const dnnl::memory::dims& dims, int64_t channels) {
  const int64_t plane = dims[2] * dims[3];
  return {dims, dnnl::memory::data_type::f32, dnnl::memory::dims{channels * plane, plane, dims[3], 1}};
}

// Throws dnnl::error where the library has no such kernel.
std::shared_ptr<const Plan> make_plan(const Key& key) {
  const OneThread one;
  const Conv2dShape& s = key.s;
  constexpr auto f32 = dnnl::memory::data_type::f32;
  const dnnl::memory::dims x_dims{s.batch, s.in_channels, s.height, s.width};
  const dnnl::memory::dims w_dims{s.out_channels, s.in_channels, s.kernel_h, s.kernel_w};
  const dnnl::memory::dims y_dims{s.batch, s.out_channels, s.out_height(), s.out_width()};
  const dnnl::memory::dims strides{s.stride_h, s.stride_w};
  const dnnl::memory::dims padding{s.pad_h, s.pad_w};
  const Desc x(x_dims, f32, Tag::any), w(w_dims, f32, Tag::any), y(y_dims, f32, Tag::any);
  const bool cuts_input = key.pass == Conv2dPass::input_grad;
  const Desc plain_x = plain_piece(x_dims, cuts_input ? key.whole : s.in_channels);
  const Desc plain_w = plain_piece(w_dims, cuts_input ? key.whole : s.in_channels);
  const Desc plain_y = plain_piece(y_dims, cuts_input ? s.out_channels : key.whole);
  const auto algorithm = key.algorithm == Algorithm::winograd ? dnnl::algorithm::convolution_winograd
                                                              : dnnl::algorithm::convolution_direct;

  auto plan = std::make_shared<Plan>();
  plan->bias = Desc({s.out_channels}, f32, Tag::a);
  using Forward = dnnl::convolution_forward;
  constexpr auto training = dnnl::prop_kind::forward_training;
  const Forward::primitive_desc forward =
      key.bias ? describe<Forward>(training, algorithm, x, w, plan->bias, y, strides, padding, padding)
               : describe<Forward>(training, algorithm, x, w, y, strides, padding, padding);
  if (key.pass == Conv2dPass::forward) {
    plan->primitive = Forward(forward);
    plan->x = Operand(plain_x, forward.src_desc(), false);
    plan->w = Operand(plain_w, forward.weights_desc(), false);
    plan->y = Operand(plain_y, forward.dst_desc(), true);
    plan->scratch = forward.scratchpad_desc();
  } else if (key.pass == Conv2dPass::input_grad) {
    using Gradient = dnnl::convolution_backward_data;
    const auto description = describe_gradient<Gradient>(forward, algorithm, x, w, y, strides, padding, padding);
    plan->primitive = Gradient(description);
    plan->x = Operand(plain_x, description.diff_src_desc(), true);
    plan->w = Operand(plain_w, description.weights_desc(), false);
    plan->y = Operand(plain_y, description.diff_dst_desc(), false);
    plan->scratch = description.scratchpad_desc();
  } else {
    using Gradient = dnnl::convolution_backward_weights;
    const auto description = describe_gradient<Gradient>(forward, algorithm, x, w, y, strides, padding, padding);
    plan->primitive = Gradient(description);
    plan->x = Operand(plain_x, description.src_desc(), false);
    plan->w = Operand(plain_w, description.diff_weights_desc(), true);
    plan->y = Operand(plain_y, description.diff_dst_desc(), false);
    plan->scratch = description.scratchpad_desc();
  }
  for (const Desc* desc : {&plan->scratch, &plan->x.scratch, &plan->w.scratch, &plan->y.scratch}) {
    plan->scratch_bytes = std::max(plan->scratch_bytes, rounded(desc->get_size()));
  }
  return plan;
}

// Plans by shape, null where oneDNN has none. Bounded: a program with ever new shapes starts over.
std::shared_ptr<const Plan> plan_for(const Key& key) {
  using Plans = std::map<Key, std::shared_ptr<const Plan>>;
  std::mutex& mutex = sluice::detail::process_lock(sluice::detail::ProcessLock::convolutions);
  Plans& plans = sluice::detail::first_use([] { return new Plans; });
  constexpr std::size_t most_plans = 1024;
  {
    const std::lock_guard lock(mutex);
    if (const auto found = plans.find(key); found != plans.end()) return found->second;
  }
  std::shared_ptr<const Plan> plan;
  try {
    const sluice::detail::InFirstUse in_use;  // under locks of oneDNN's
    plan = make_plan(key);
  } catch (const dnnl::error& error) {
    if (error.status != dnnl_unimplemented) throw;
  }
  const std::lock_guard lock(mutex);
  if (plans.size() >= most_plans) plans.clear();
  return plans.emplace(key, std::move(plan)).first->second;
}

// How a job is cut. Every piece packs (and for Winograd transforms) its weights, so it wants many places of y per
// weight; what is missing to enough pieces comes from cutting the channels, which packs its images again instead.
struct Cut {
  int64_t images, channels;  // of a piece
  int64_t whole;             // all channels of the axis that is cut
  int64_t rows, columns;     // pieces along the batch, along the channels
};

Cut cut_of(Conv2dPass pass, const Conv2dShape& s, Algorithm algorithm) {
  const bool winograd = algorithm == Algorithm::winograd;
  const int64_t least_work = winograd ? 32 << 20 : 16 << 20;  // multiply-adds of a piece: some 0.15 ms
  const int64_t least_places = winograd ? 1024 : 256;
  const int64_t least_channels = 64;
  const int64_t wanted = std::clamp<int64_t>(s.work() * s.batch / least_work, 1, 16);
  const int64_t places = s.batch * s.out_height() * s.out_width();
  Cut cut{};
  cut.whole = pass == Conv2dPass::input_grad ? s.in_channels : s.out_channels;
  const int64_t rows = std::clamp<int64_t>(std::min(wanted, places / least_places), 1, std::max<int64_t>(s.batch, 1));
  cut.images = (s.batch + rows - 1) / rows;
  cut.rows = (s.batch + cut.images - 1) / cut.images;
  const int64_t columns = std::clamp<int64_t>(wanted / cut.rows, 1, std::max<int64_t>(cut.whole / least_channels, 1));
  cut.channels = columns == 1 ? cut.whole : ((cut.whole + columns - 1) / columns + 15) / 16 * 16;
  cut.columns = (cut.whole + cut.channels - 1) / cut.channels;
  return cut;
}

Key key_of(Conv2dPass pass, const Conv2dShape& s, Algorithm algorithm, bool bias, int64_t images, int64_t channels) {
  Key key{pass, algorithm, bias, s, 0};
  key.s.batch = images;
  int64_t& cut_axis = pass == Conv2dPass::input_grad ? key.s.in_channels : key.s.out_channels;
  key.whole = std::exchange(cut_axis, channels);
  return key;
}

int64_t channels_of(const Cut& cut, int64_t column) {
  return std::min(cut.channels, cut.whole - column * cut.channels);
}

// Calls piece(first image, images, first channel, channels) for all pieces.
template <class Piece>
void for_each_piece(const Cut& cut, int64_t batch, const Piece& piece) {
  parallel_for(cut.rows * cut.columns, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t image = i / cut.columns * cut.images, channel = i % cut.columns * cut.channels;
      piece(image, std::min(cut.images, batch - image), channel, channels_of(cut, i % cut.columns));
    }
  });
}

dnnl::memory at(const Desc& desc, const void* pointer) { return {desc, onednn_engine(), const_cast<void*>(pointer)}; }

// The blocked copy of an input, made in memory that is given; or the input itself.
dnnl::memory bring(const Operand& operand, const float* plain, char* copy, char* scratch) {
  if (operand.bytes == 0) return at(operand.plain, plain);
  dnnl::memory blocked = at(operand.blocked, copy);
  operand.turn.execute(onednn_stream(), {{DNNL_ARG_FROM, at(operand.plain, plain)},
                                         {DNNL_ARG_TO, blocked},
                                         {DNNL_ARG_SCRATCHPAD, at(operand.scratch, scratch)}});
  return blocked;
}

dnnl::memory place_for(const Operand& operand, float* plain, char* copy) {
  return operand.bytes == 0 ? at(operand.plain, plain) : at(operand.blocked, copy);
}

void deliver(const Operand& operand, const dnnl::memory& made, float* plain, char* scratch) {
  if (operand.bytes == 0) return;
  operand.turn.execute(onednn_stream(), {{DNNL_ARG_FROM, made},
                                         {DNNL_ARG_TO, at(operand.plain, plain)},
                                         {DNNL_ARG_SCRATCHPAD, at(operand.scratch, scratch)}});
}

struct ReluInPlace {
  SLUICE_KERNEL_BODY void operator()(float* x, int64_t n) const {
    for (int64_t i = 0; i < n; ++i) x[i] = x[i] < 0.0F ? 0.0F : x[i];
  }
};

// relu on what a piece made, blocked or plain; pieces of a plain array have the rest of each image between their
// images.
void relu_in_place(const Plan& plan, const dnnl::memory& made, float* plain, int64_t images, int64_t image_size,
                   int64_t image_pitch) {
  if (plan.y.bytes != 0) {
    dispatch(ReluInPlace{}, static_cast<float*>(made.get_data_handle()),
             static_cast<int64_t>(plan.y.blocked.get_size() / sizeof(float)));
    return;
  }
  for (int64_t i = 0; i < images; ++i) dispatch(ReluInPlace{}, plain + i * image_pitch, image_size);
}

// One chunk: copies in, the primitive, the copy out; with weights elsewhere, if they have memory of their own.
struct Chunk {
  Chunk(const Plan& p, const Workspace& workspace, bool weights_elsewhere)
      : plan(p),
        weights(weights_elsewhere ? 0 : p.w.bytes),
        memory(workspace, p.scratch_bytes + p.x.bytes + weights + p.y.bytes) {}
  char* scratch() const { return memory.bytes_at(0); }
  char* x() const { return memory.bytes_at(plan.scratch_bytes); }
  char* w() const { return memory.bytes_at(plan.scratch_bytes + plan.x.bytes); }
  char* y() const { return memory.bytes_at(plan.scratch_bytes + plan.x.bytes + weights); }
  const Plan& plan;
  std::size_t weights;
  Borrowed memory;
  OneThread one;
};

// The weights of all pieces that several of them need, as their primitives want them. plan_of(images, channels) is the
// plan of a piece; the weights of a channel have `filter` numbers.
class Weights {
 public:
  template <class PlanOf>
  Weights(const Cut& cut, const float* w, int64_t filter, const PlanOf& plan_of, const Workspace& workspace)
      : cut_(cut), w_(w), filter_(filter) {
    if (cut.rows == 1) return;  // each is needed once
    std::size_t bytes = 0;
    for (int64_t i = 0; i < cut.columns; ++i) {
      plans_.push_back(plan_of(cut.images, channels_of(cut, i)));
      places_.push_back(bytes);
      bytes += plans_.back()->w.bytes + rounded(plans_.back()->w.scratch.get_size());
    }
    memory_.emplace(workspace, bytes);
    parallel_for(cut.columns, 1, [&](int64_t begin, int64_t end) {
      const OneThread one;
      for (int64_t i = begin; i < end; ++i) {
        const Operand& operand = plans_[static_cast<std::size_t>(i)]->w;
        bring(operand, w + i * cut.channels * filter, copy(i), copy(i) + operand.bytes);
      }
    });
  }
  /// Whether they are here for a piece of this plan, whose channels begin at this one.
  bool has(const Plan& plan, int64_t channel) const {
    if (!memory_ || plan.w.bytes == 0) return false;
    return plan.w.blocked == plans_[static_cast<std::size_t>(channel / cut_.channels)]->w.blocked;
  }
  dnnl::memory of(const Chunk& chunk, int64_t channel) const {
    if (has(chunk.plan, channel)) return at(chunk.plan.w.blocked, copy(channel / cut_.channels));
    return bring(chunk.plan.w, w_ + channel * filter_, chunk.w(), chunk.scratch());
  }

 private:
  char* copy(int64_t column) const { return memory_->bytes_at(places_[static_cast<std::size_t>(column)]); }
  const Cut& cut_;
  const float* w_;
  int64_t filter_;
  std::vector<std::shared_ptr<const Plan>> plans_;  // of each column of pieces
  std::vector<std::size_t> places_;                 // of their weights in the memory
  std::optional<Borrowed> memory_;
};

}  // namespace

bool onednn_has(Conv2dPass pass, const Conv2dShape& s, Algorithm algorithm) {
  if (s.batch <= 0 || s.in_channels <= 0 || s.out_channels <= 0) return false;  // there is nothing to cut
  // The last pieces may be smaller and have plans of their own.
  const Cut cut = cut_of(pass, s, algorithm);
  const int64_t last_images = s.batch - (cut.rows - 1) * cut.images;
  const int64_t last_channels = cut.whole - (cut.columns - 1) * cut.channels;
  for (const int64_t images : {cut.images, last_images}) {
    for (const int64_t channels : {cut.channels, last_channels}) {
      if (plan_for(key_of(pass, s, algorithm, false, images, channels)) == nullptr) return false;
      if (pass != Conv2dPass::forward) continue;
      if (plan_for(key_of(pass, s, algorithm, true, images, channels)) == nullptr) return false;
    }
  }
  return true;
}

void onednn_forward(const Conv2dShape& s, Algorithm algorithm, const float* x, const float* w, const float* bias,
                    float* y, bool relu, const Workspace& workspace) {
  const int64_t x_size = s.in_channels * s.height * s.width;
  const int64_t filter = s.in_channels * s.kernel_h * s.kernel_w;
  const int64_t plane = s.out_height() * s.out_width();
  const auto plan_of = [&](int64_t images, int64_t channels) {
    return plan_for(key_of(Conv2dPass::forward, s, algorithm, bias != nullptr, images, channels));
  };
  const Cut cut = cut_of(Conv2dPass::forward, s, algorithm);
  const Weights packed(cut, w, filter, plan_of, workspace);
  for_each_piece(cut, s.batch, [&](int64_t image, int64_t images, int64_t channel, int64_t channels) {
    const auto plan = plan_of(images, channels);
    const Chunk chunk(*plan, workspace, packed.has(*plan, channel));
    float* out = y + (image * s.out_channels + channel) * plane;
    const dnnl::memory from = bring(plan->x, x + image * x_size, chunk.x(), chunk.scratch());
    const dnnl::memory weights = packed.of(chunk, channel);
    const dnnl::memory to = place_for(plan->y, out, chunk.y());
    plan->primitive.execute(onednn_stream(), {{DNNL_ARG_SRC, from},
                                              {DNNL_ARG_WEIGHTS, weights},
                                              {DNNL_ARG_BIAS, at(plan->bias, bias == nullptr ? bias : bias + channel)},
                                              {DNNL_ARG_DST, to},
                                              {DNNL_ARG_SCRATCHPAD, at(plan->scratch, chunk.scratch())}});
    // Not oneDNN's post-op, which turns NaN into 0. The chunk is still in the cache.
    if (relu) relu_in_place(*plan, to, out, images, channels * plane, s.out_channels * plane);
    deliver(plan->y, to, out, chunk.scratch());
  });
}

void onednn_input_grad(const Conv2dShape& s, Algorithm algorithm, const float* dy, const float* w, float* dx,
                       const Workspace& workspace) {
  const int64_t plane = s.height * s.width;
  const int64_t y_size = s.out_channels * s.out_height() * s.out_width();
  const auto plan_of = [&](int64_t images, int64_t channels) {
    return plan_for(key_of(Conv2dPass::input_grad, s, algorithm, false, images, channels));
  };
  const Cut cut = cut_of(Conv2dPass::input_grad, s, algorithm);
  const Weights packed(cut, w, s.kernel_h * s.kernel_w, plan_of, workspace);
  for_each_piece(cut, s.batch, [&](int64_t image, int64_t images, int64_t channel, int64_t channels) {
    const auto plan = plan_of(images, channels);
    const Chunk chunk(*plan, workspace, packed.has(*plan, channel));
    float* out = dx + (image * s.in_channels + channel) * plane;
    const dnnl::memory from = bring(plan->y, dy + image * y_size, chunk.y(), chunk.scratch());
    const dnnl::memory weights = packed.of(chunk, channel);
    const dnnl::memory to = place_for(plan->x, out, chunk.x());
    plan->primitive.execute(onednn_stream(), {{DNNL_ARG_DIFF_DST, from},
                                              {DNNL_ARG_WEIGHTS, weights},
                                              {DNNL_ARG_DIFF_SRC, to},
                                              {DNNL_ARG_SCRATCHPAD, at(plan->scratch, chunk.scratch())}});
    deliver(plan->x, to, out, chunk.scratch());
  });
}

namespace {

// The gradient of a weight from a piece, as one sum in f32; blocked, if it is to stay as the primitive makes it.
void weight_sum(const Key& key, const float* x, const float* dy, float* out, bool blocked, const Workspace& workspace) {
  const auto plan = plan_for(key);
  const Chunk chunk(*plan, workspace, blocked);
  const dnnl::memory from = bring(plan->x, x, chunk.x(), chunk.scratch());
  const dnnl::memory gradient = bring(plan->y, dy, chunk.y(), chunk.scratch());
  const dnnl::memory to = blocked ? at(plan->w.blocked, out) : place_for(plan->w, out, chunk.w());
  plan->primitive.execute(onednn_stream(), {{DNNL_ARG_SRC, from},
                                            {DNNL_ARG_DIFF_DST, gradient},
                                            {DNNL_ARG_DIFF_WEIGHTS, to},
                                            {DNNL_ARG_SCRATCHPAD, at(plan->scratch, chunk.scratch())}});
  if (!blocked) deliver(plan->w, to, out, chunk.scratch());
}

// Places of y that oneDNN adds in one sum. Its register tiles and row loops are several sums each.
constexpr int64_t kPlacesAtOnce = 4 * kMostPlaces;

// Images that are larger go in bands of rows, copied with their padding.
void weight_grad_in_bands(const Conv2dShape& s, Algorithm algorithm, const float* x, const float* dy, float* dw,
                          const Workspace& workspace) {
  const int64_t width = s.out_width(), height = s.out_height();
  const int64_t rows = std::max<int64_t>(1, kPlacesAtOnce / width), bands = (height + rows - 1) / rows;
  Conv2dShape all = s;
  all.batch = s.batch * bands;
  sum_over_chunks(all, (all.batch + 15) / 16, dw, workspace, [&](int64_t first, int64_t count, double* totals) {
    std::vector<float> image, gradient, part(static_cast<std::size_t>(s.w_count()));
    for (int64_t i = first; i < first + count; ++i) {
      const int64_t row = i % bands * rows;
      Conv2dShape band = s;
      band.batch = 1;
      band.pad_h = 0;
      const int64_t of_y = std::min(rows, height - row);
      band.height = (of_y - 1) * s.stride_h + s.kernel_h;
      image.assign(static_cast<std::size_t>(s.in_channels * band.height * s.width), 0.0F);
      gradient.resize(static_cast<std::size_t>(s.out_channels * of_y * width));
      const int64_t top = row * s.stride_h - s.pad_h;  // the band's first row in the image
      const int64_t begin = std::max<int64_t>(0, -top), end = std::min(band.height, s.height - top);
      for (int64_t c = 0; c < s.in_channels && begin < end; ++c) {
        std::copy_n(x + ((i / bands * s.in_channels + c) * s.height + top + begin) * s.width, (end - begin) * s.width,
                    image.data() + (c * band.height + begin) * s.width);
      }
      for (int64_t c = 0; c < s.out_channels; ++c) {
        std::copy_n(dy + ((i / bands * s.out_channels + c) * height + row) * width, of_y * width,
                    gradient.data() + c * of_y * width);
      }
      weight_sum(key_of(Conv2dPass::weight_grad, band, algorithm, false, 1, s.out_channels), image.data(),
                 gradient.data(), part.data(), false, workspace);
      dispatch(AddToTotals{}, static_cast<const float*>(part.data()), totals, s.w_count());
    }
  });
}

}  // namespace

void onednn_weight_grad(const Conv2dShape& s, Algorithm algorithm, const float* x, const float* dy, float* dw,
                        const Workspace& workspace) {
  const int64_t x_size = s.in_channels * s.height * s.width;
  const int64_t filter = s.in_channels * s.kernel_h * s.kernel_w;
  const int64_t plane = s.out_height() * s.out_width();
  if (plane > kPlacesAtOnce) return weight_grad_in_bands(s, algorithm, x, dy, dw, workspace);
  const Cut cut = cut_of(Conv2dPass::weight_grad, s, algorithm);
  // A row of more images than oneDNN shall add in f32 is the total of several sums.
  const int64_t at_once = std::max<int64_t>(1, kPlacesAtOnce / plane);
  const auto key = [&](int64_t images, int64_t channels) {
    return key_of(Conv2dPass::weight_grad, s, algorithm, false, images, channels);
  };
  // Each row of pieces makes all of dw, and the rows are added in order: as the primitives make them, if all of them
  // make the same, so that one array is turned, not one for each row.
  const int64_t last_images = s.batch - (cut.rows - 1) * cut.images;
  std::vector<std::shared_ptr<const Plan>> plans;  // of each column
  std::vector<int64_t> places;                     // where it lies in a row, in numbers
  int64_t row = 0;
  bool blocked = cut.rows > 1;
  for (int64_t i = 0; i < cut.columns; ++i) {
    const int64_t channels = channels_of(cut, i);
    plans.push_back(plan_for(key(std::min(at_once, cut.images), channels)));
    for (const int64_t images : {cut.images, last_images}) {
      for (const int64_t some : {std::min(at_once, images), images % at_once}) {
        blocked = blocked && (some == 0 || plan_for(key(some, channels))->w.blocked == plans.back()->w.blocked);
      }
    }
    places.push_back(row);
    row += static_cast<int64_t>(rounded(plans.back()->w.blocked.get_size()) / sizeof(float));
  }
  if (!blocked) {
    for (int64_t i = 0; i < cut.columns; ++i) places[static_cast<std::size_t>(i)] = i * cut.channels * filter;
    row = s.w_count();
  }
  const Borrowed parts(workspace, cut.rows == 1 ? 0 : static_cast<std::size_t>(cut.rows * row) * sizeof(float));
  float* const first = cut.rows == 1 ? dw : parts.as<float>();
  for_each_piece(cut, s.batch, [&](int64_t image, int64_t images, int64_t channel, int64_t channels) {
    const auto column = static_cast<std::size_t>(channel / cut.channels);
    float* const out = first + image / cut.images * row + places[column];
    const int64_t count =
        blocked ? static_cast<int64_t>(plans[column]->w.blocked.get_size() / sizeof(float)) : channels * filter;
    const int64_t last = image + images;
    std::vector<double> totals(static_cast<std::size_t>(images > at_once ? count : 0));
    for (; image < last; image += at_once) {
      weight_sum(key(std::min(at_once, last - image), channels), x + image * x_size,
                 dy + (image * s.out_channels + channel) * plane, out, blocked, workspace);
      if (!totals.empty()) dispatch(AddToTotals{}, static_cast<const float*>(out), totals.data(), count);
    }
    for (std::size_t i = 0; i < totals.size(); ++i) out[i] = static_cast<float>(totals[i]);
  });
  if (cut.rows == 1) return;
  if (!blocked) return sum_parts(static_cast<const float*>(first), row, cut.rows, dw, row);
  for (int64_t i = 0; i < cut.columns; ++i) {
    const auto column = static_cast<std::size_t>(i);
    const Plan& plan = *plans[column];
    float* const sums = first + places[column];
    sum_parts(static_cast<const float*>(sums), row, cut.rows, sums,
              static_cast<int64_t>(plan.w.blocked.get_size() / sizeof(float)));
    const Borrowed scratch(workspace, rounded(plan.w.scratch.get_size()));
    const OneThread one;
    if (plan.w.bytes == 0) {
      std::copy_n(sums, channels_of(cut, i) * filter, dw + i * cut.channels * filter);
    } else {
      deliver(plan.w, at(plan.w.blocked, sums), dw + i * cut.channels * filter, scratch.bytes_at(0));
    }
  }
}

}  // namespace sluice::cpu_backend::conv
