// The engine alone, without arrays: an image pipeline in which each operation says what it reads and what it changes,
// and the engine finds out what may run at once. Links sluice::engine and nothing else of Sluice.
#include <cstdio>
#include <map>
#include <stdexcept>
#include <thread>
#include <vector>

#include "sluice/engine/engine.h"

using namespace sluice;

namespace {

constexpr int kSize = 256, kThumb = 16;

struct Image {
  int size = 0;
  std::vector<int> pixels;
  int at(int row, int column) const { return pixels[static_cast<std::size_t>(row * size + column)]; }
  int& at(int row, int column) { return pixels[static_cast<std::size_t>(row * size + column)]; }
};

using Histogram = std::map<int, int>;  // brightness in quarters, how many pixels

void draw(int number, Image& image) {
  image = {kSize, std::vector<int>(kSize * kSize)};
  for (int row = 0; row < kSize; ++row) {
    for (int column = 0; column < kSize; ++column) image.at(row, column) = (row * number + column * column / 64) & 255;
  }
}

/// Each pixel becomes the mean of itself and its right neighbour, in place.
void blur(Image& image) {
  for (int row = 0; row < image.size; ++row) {
    for (int column = 0; column + 1 < image.size; ++column) {
      image.at(row, column) = (image.at(row, column) + image.at(row, column + 1)) / 2;
    }
  }
}

void shrink(const Image& image, Image& thumb) {
  thumb = {kThumb, std::vector<int>(kThumb * kThumb)};
  const int step = image.size / kThumb;
  for (int row = 0; row < kThumb; ++row) {
    for (int column = 0; column < kThumb; ++column) thumb.at(row, column) = image.at(row * step, column * step);
  }
}

void count(const Image& image, Histogram& histogram) {
  for (int p : image.pixels) ++histogram[p / 64];
}

void invert(Image& image) {
  for (int& p : image.pixels) p = 255 - p;
}

}  // namespace

int main() {
  // The process's own. With SLUICE_TRACE=tour.json it writes what ran when, for ui.perfetto.dev.
  Engine& engine = Engine::instance();

  std::printf("1. Four frames, side by side. On one frame, operations take effect in the order of the program.\n");
  std::vector<Var<Image>> frames, thumbs;
  std::vector<Var<Histogram>> histograms;
  for (int i = 0; i < 4; ++i) {
    const Var<Image>& frame = frames.emplace_back(engine.variable("frame"));
    const Var<Image>& thumb = thumbs.emplace_back(engine.variable("thumb"));
    const Var<Histogram>& histogram = histograms.emplace_back(engine.variable("histogram"));
    engine.push(write(frame), [i](Image& image) { draw(i, image); }, {.name = "draw"});
    engine.push(update(frame), blur, {.name = "blur"});
    // These two only read the frame: they may overlap. Both wait for the blur.
    engine.push(read(frame), write(thumb), shrink, {.name = "shrink"});
    engine.push(read(frame), update(histogram), count, {.name = "histogram"});
    // This one changes the frame: it waits for both readers, and they never see its work.
    engine.push(update(frame), invert, {.name = "invert"});
  }
  for (int i = 0; i < 4; ++i) {
    engine.wait(thumbs[i]);
    engine.wait(histograms[i]);
    std::printf("   frame %d: middle of the thumbnail %3d, %5d dark pixels\n", i, thumbs[i]->at(8, 8),
                (*histograms[i])[0]);
  }

  std::printf("2. A failure poisons what the operation wrote, and all that is made from it.\n");
  const Var<Image>& frame = frames[0];
  engine.push([] { throw std::runtime_error("the camera is unplugged"); }, {write(frame)}, {.name = "grab"});
  engine.push(read(frame), write(thumbs[0]), shrink, {.name = "shrink"});
  try {
    engine.wait(thumbs[0]);
  } catch (const Error& error) {
    std::printf("   %s\n", error.what());
  }
  engine.push(write(frame), [](Image& image) { draw(0, image); }, {.name = "draw"});  // a write heals
  engine.wait(frame);
  std::printf("   after the next draw the frame is good again\n");

  std::printf("3. An operation may complete later than it returns: a Completion is answered by any thread.\n");
  std::thread camera;
  engine.push(write(frame),
              [&camera](Completion completion, Image& image) {
                camera = std::thread([&image, done = std::move(completion)]() mutable {
                  draw(7, image);
                  done.done();
                });
              },
              {.name = "camera"});
  engine.wait(frame);
  camera.join();
  std::printf("   the camera delivered: three pixels %d %d %d\n", frame->at(99, 0), frame->at(99, 1), frame->at(99, 2));

  std::printf("4. What has not begun can be cancelled. The old value stays whole, and recover() brings it back.\n");
  Borrow hold = engine.borrow(read(frame));  // we look at the frame: who wants to change it waits
  Ticket ticket = engine.push(update(frame), blur, {.name = "blur"});
  std::printf("   why it waits: %s\n", engine.explain(ticket).c_str());
  const bool cancelled = ticket.cancel();
  hold.release();
  try {
    ticket.wait();
  } catch (const Error& error) {
    std::printf("   cancelled: %s. %s\n", cancelled ? "yes" : "no", error.what());
  }
  engine.recover(frame);
  engine.wait(frame);
  std::printf("   recovered: three pixels %d %d %d\n", frame->at(99, 0), frame->at(99, 1), frame->at(99, 2));

  std::printf("5. What is pushed again and again can be captured once, and replayed at a small part of the cost.\n");
  const Program program = engine.capture([&] {
    engine.push(update(frame), blur, {.name = "blur"});
    engine.push(read(frame), write(thumbs[0]), shrink, {.name = "shrink"});
    engine.push(update(frame), invert, {.name = "invert"});
  });
  for (int i = 0; i < 100; ++i) engine.replay(program);
  engine.wait(frame);
  std::printf("   %zu operations, 100 times: three pixels %d %d %d\n", program.size(), frame->at(99, 0),
              frame->at(99, 1), frame->at(99, 2));
}
