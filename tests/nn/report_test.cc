// What a run tells: logs, progress, patience.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pty.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <bit>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <future>
#include <limits>
#include <thread>

#include "nn_support.h"
#include "sluice/nn/report/append_file.h"
#include "sluice/nn/report/event_file.h"
#include "sluice/nn/report/log_table.h"
#include "sluice/tests/support/temporary_directory.h"

namespace sluice {
namespace {

using test::read_file;
using test::TemporaryDirectory;
using test::write_file;
using ::testing::HasSubstr;

template <class F>
std::string error(const F& f) {
  try {
    f();
  } catch (const std::exception& e) {
    return e.what();
  }
  return "nothing";
}

class Logs : public ::testing::Test {
 protected:
  std::string file() const { return (folder_ / "out/run.csv").string(); }
  test::TestEngine engine_{{.threads = 2, .logical_cpus = 4}};
  TemporaryDirectory folder_;
};

TEST_F(Logs, ARowForEachStep) {
  {
    nn::Log log(file());
    EXPECT_FALSE(std::filesystem::exists(file()));
    const NDArray loss = full({1, 1}, 0.1F).to(test::device());
    log.add(0, {{"loss", loss}, {"rate", 0.1}, {"tokens", std::int64_t{1} << 40}});
    log.add(1, {{"loss", full({}, std::numeric_limits<double>::infinity(), DType::f64)}, {"good", arange(1) == 0}});
    log.add(1, {{"loss", 100000}, {"rate", -1e-7}});
    log.add(2, {{"good, or not", 1 / 3.0}, {"loss", full({}, 1 / 3.0, DType::f64)}});
    log.flush();
    EXPECT_EQ(read_file(file()),
              "step,loss,rate,tokens,good,\"good, or not\"\n0,0.1,0.1,1099511627776,,\n1,inf,,,1,\n1,100000,-1e-07,,,\n"
              "2,0.3333333333333333,,,,0.3333333333333333\n");
    log.add(3, {});
  }
  EXPECT_THAT(read_file(file()), HasSubstr("\n3,,,,,\n"));
}

/// Nobody waits for a value, and rows stay in order.
TEST_F(Logs, RowsAreWrittenWhenTheyAreThere) {
  if (test::on_streams()) GTEST_SKIP() << "its body waits on a thread";
  nn::Log log(file());
  std::promise<void> go;
  const NDArray late = zeros({});
  push_op(
      [gone = go.get_future().share()](ArrayContext& c) {
        gone.wait();
        *c.output(0).as<float>() = 7;
      },
      {}, {late});
  log.add(1, {{"a", late}});
  log.add(2, {{"a", 2}});
  late.fill(0);  // the row has the value of then
  EXPECT_EQ(read_file(file()), "step\n");
  go.set_value();
  log.flush();
  EXPECT_EQ(read_file(file()), "step,a\n1,7\n2,2\n");
}

/// A row that is due, but waits for an older one, is written with that one: nobody needs to flush.
TEST_F(Logs, ADueRowBehindALateOneIsWritten) {
  nn::Log log(file());
  log.add(1, {{"a", 1}});
  std::this_thread::sleep_for(std::chrono::milliseconds(60));  // so that the next row is not kept for others
  ArrayCompletion open;
  std::promise<void> begun;
  const NDArray late = empty({}, DType::f32, cpu(0));
  push_op(
      [&](ArrayContext& c, ArrayCompletion done) {
        *c.output().as<float>() = 2;
        open = std::move(done);
        begun.set_value();
      },
      {}, {late}, {.name = "late"});
  log.add(2, {{"a", late}});
  begun.get_future().get();
  std::this_thread::sleep_for(std::chrono::milliseconds(60));
  log.add(3, {{"a", 3}});  // is due, and waits for step 2
  EXPECT_EQ(read_file(file()), "step,a\n1,1\n");
  open.done();
  while (read_file(file()) != "step,a\n1,1\n2,2\n3,3\n") std::this_thread::yield();  // within the test's time limit
}

/// Steps are short, so that many rows are read together, behind writes to the arrays.
TEST_F(Logs, RowsHaveTheValuesOfTheirCalls) {
  constexpr int kRows = 700;
  nn::Log log(file());
  engine_->start_trace();
  const auto begin = std::chrono::steady_clock::now();
  std::string wanted = "step,number,whole,part,half\n";
  {
    const NDArray number = zeros({}).to(test::device()), many = zeros({1000}).to(test::device());
    const NDArray whole = zeros({1}, DType::i32).to(test::device()), half = zeros({}, DType::bf16).to(test::device());
    for (int i = 1; i <= kRows; ++i) {
      for (NDArray x : {number, many, whole, half}) x += 1;
      log.add(i, {{"number", number}, {"whole", whole}, {"part", many.narrow(0, 999, 1000)}, {"half", half}});
      const std::string is = std::to_string(i);
      wanted += is + "," + is + "," + is + "," + is + "," + std::to_string(std::min(i, 256)) + "\n";
    }
  }
  log.flush();
  EXPECT_EQ(read_file(file()), wanted);
  const std::vector<TraceEvent> events = engine_->stop_trace();
  const auto reads =
      std::ranges::count_if(events, [](const TraceEvent& e) { return std::string_view(e.name) == "log"; });
  const std::chrono::duration<double> time = std::chrono::steady_clock::now() - begin;
  EXPECT_LE(static_cast<double>(reads), 8 + time.count() / 0.05);  // one in 50 ms, or for 128 of these rows
}

/// A row keeps no more than the number: a write to what it is a part of copies nothing for its sake.
TEST_F(Logs, APartOfALargeArrayIsNotKeptWhole) {
  nn::Log log(file());
  const NDArray many = zeros({1 << 20});
  many.wait();
  MemoryPool& pool = memory_pool(cpu(0));
  const std::size_t before = pool.stats().in_use;
  pool.reset_peak();
  for (int i = 0; i < 20; ++i) {
    log.add(i, {{"first", many.narrow(0, 0, 1)}});
    many.fill(i);
  }
  log.flush();
  EXPECT_LT(pool.stats().peak, before + (std::size_t{1} << 22));
}

/// A row is written with others, but who cancels their scope does not cancel it.
TEST_F(Logs, ACancelledScopeIsNotThatOfOtherRows) {
  nn::Log log(file());
  log.add(1, {{"a", ones({})}});
  log.flush();
  log.add(2, {{"a", ones({}) * 2}});
  const NDArray whole = arange(1) + 7;
  {
    CancelScope stopped;
    const CancelScope::Guard guard(stopped);
    stopped.cancel();
    log.add(3, {{"a", ones({}) * 3}});
    log.add(4, {{"a", whole}});
    log.flush();
  }
  EXPECT_EQ(read_file(file()), "step,a\n1,1\n2,2\n3,nan\n4,7\n");
}

TEST_F(Logs, ArraysOfSeveralEngines) {
  const DeviceScope on_cpu(cpu(0));
  nn::Log log(file());
  log.add(1, {{"a", ones({})}});
  log.add(2, {{"a", ones({}) * 2}});
  {
    Engine other({.threads = 1});
    set_default_engine(&other);
    log.add(3, {{"a", ones({}) * 3}});
    set_default_engine(&engine_.engine());
    log.add(4, {{"a", ones({}) * 4}});
    log.flush();
  }
  EXPECT_EQ(read_file(file()), "step,a\n1,1\n2,2\n3,3\n4,4\n");
}

/// Static objects go when the engine takes no more operations.
TEST_F(Logs, AStaticOneIsWrittenAtTheEnd) {
  constexpr const char* kPath = "SLUICE_STATIC_LOG";  // the child makes a folder of its own
  if (!std::getenv(kPath)) ::setenv(kPath, file().c_str(), 1);
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto program = [&] {
    static nn::Log log(std::getenv(kPath));
    set_default_engine(nullptr);
    const DeviceScope on_cpu(cpu(0));
    for (int i = 0; i < 3; ++i) log.add(i, {{"a", ones({}) * i}, {"b", (ones({}) * 2).to(DType::f16)}});
    std::filesystem::remove_all(folder_.path());
    std::exit(0);
  };
  EXPECT_EXIT(program(), ::testing::ExitedWithCode(0), "");
  ::unsetenv(kPath);
  EXPECT_EQ(read_file(file()), "step,a,b\n0,0,2\n1,1,2\n2,2,2\n");
}

TEST_F(Logs, APoisonedValueIsNan) {
  nn::Log log(file());
  const NDArray bad = zeros({}).to(test::device());
  push_op([](ArrayContext&) { throw std::runtime_error("no"); }, {}, {bad}, {.on = test::device()});
  log.add(1, {{"a", bad}, {"b", 1}});
  log.flush();
  EXPECT_EQ(read_file(file()), "step,a,b\n1,nan,1\n");
}

TEST_F(Logs, OfAMesh) {
  const Mesh mesh({{"dp", 2}}, test::device_kind());
  const NDArray terms = sum(place(ones({4}).to(test::device()), mesh, {{"dp", shard(0)}}));
  const MeshScope scope(mesh);
  nn::Log log(file());
  log.add(1, {{"sum", terms}});
  log.flush();
  EXPECT_EQ(read_file(file()), "step,sum\n1,4\n");
}

TEST_F(Logs, GoOnInAnotherProcess) {
  const std::string saved = (folder_ / "run.safetensors").string();
  {
    nn::Log log(file());
    for (const int step : {1, 2, 3}) {
      log.add(step, {{"a", full({}, step)}});
      if (step != 2) continue;
      nn::save(saved, {{"log", log}});
      EXPECT_THAT(read_file(file()), HasSubstr("\n2,2\n"));  // what a file goes on from is there
    }
  }
  write_file(file(), read_file(file()) + "4,5");  // killed in the midst of a row
  {
    nn::Log log(file());
    nn::load(saved, {{"log", log}});
    EXPECT_EQ(log.position().at("step"), 2);
    log.add(3, {{"b", 9}});
    EXPECT_THAT(error([&] { log.set_position({{"step", 1}}); }), HasSubstr("was added to"));
    EXPECT_THAT(error([&] { nn::Log(file()).add(0, {}); }), HasSubstr("another log writes it"));
  }
  EXPECT_EQ(read_file(file()), "step,a,b\n1,1,\n2,2,\n3,,9\n");
  // What nobody goes on with is kept.
  for (const int run : {1, 2}) {
    nn::Log other(file());
    other.add(run, {{"c", run}});
  }
  EXPECT_EQ(read_file(file()), "step,c\n2,2\n");
  EXPECT_EQ(read_file(file() + ".2"), "step,c\n1,1\n");
  EXPECT_THAT(read_file(file() + ".1"), HasSubstr("3,,9"));
  EXPECT_THAT(error([&] { nn::Log(file()).set_position({{"rows", 1}}); }), HasSubstr("without \"step\""));
}

/// As other programs write it.
TEST_F(Logs, GoOnWithWhatASpreadsheetHasSaved) {
  std::filesystem::create_directories(folder_ / "out");
  write_file(file(), "\"step\",\"a, b\"\r\n\"1\",\"0.5\"\r\n2,1\r\n");
  {
    nn::Log log(file());
    log.set_position({{"step", 1}});
    log.add(2, {{"a, b", 3}});
  }
  EXPECT_EQ(read_file(file()), "step,\"a, b\"\n\"1\",\"0.5\"\n2,3\n");
  write_file(file(), "step,a\none,2\n");
  nn::Log log(file());
  log.set_position({{"step", 1}});
  EXPECT_THAT(error([&] { log.add(2, {}); }), HasSubstr("line 2 has no step"));
  EXPECT_EQ(read_file(file()), "step,a\none,2\n");
}

TEST_F(Logs, ADryRunWritesNothing) {
  nn::Log log(file(), {.tensorboard = (folder_ / "board").string()});
  (void)shapes_of([&] {
    const NDArray loss = mean(zeros({4}));
    log.add(1, {{"loss", loss}});
    return loss;
  });
  EXPECT_EQ(log.position().at("step"), -1);
  EXPECT_FALSE(std::filesystem::exists(folder_ / "out"));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "board"));
}

TEST_F(Logs, AForkedChildLeavesItAlone) {
  nn::Log log(file());
  log.add(1, {{"a", 1}});
  const pid_t child = ::fork();
  if (child == 0) {
    const bool refused = error([&] {
                           log.add(2, {{"a", 2}});
                         }).find("forked from") != std::string::npos &&
                         error([&] { log.flush(); }).find("forked from") != std::string::npos;
    ::_exit(refused ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  log.add(2, {{"a", 3}});
  log.flush();
  EXPECT_EQ(read_file(file()), "step,a\n1,1\n2,3\n");
}

/// A disk that is full takes no half of a row, and the next row stands on a line of its own.
TEST_F(Logs, ARowIsWrittenWholeOrNotAtAll) {
  const std::string path = (folder_ / "rows").string();
  const pid_t child = ::fork();
  if (child == 0) {
    ::signal(SIGXFSZ, SIG_IGN);
    nn::detail::AppendFile rows(path);
    rows.put("1,2\n");
    const rlimit small{8, RLIM_INFINITY}, large{RLIM_INFINITY, RLIM_INFINITY};
    ::setrlimit(RLIMIT_FSIZE, &small);
    const std::string said = error([&] { rows.put("2,0.333333333\n"); });
    ::setrlimit(RLIMIT_FSIZE, &large);
    rows.put("3,4\n");
    ::_exit(said.find("rows: cannot write: ") == std::string::npos);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(read_file(path), "1,2\n3,4\n");
}

TEST_F(Logs, WhatIsWrongIsSaid) {
  nn::Log log(file());
  for (const char* name : {"", "step", "a\nb"}) {
    EXPECT_THAT(error([&] { log.add(1, {{name, 1}}); }), HasSubstr("may not be called"));
  }
  EXPECT_THAT(error([&] { log.add(1, {{"a", 1}, {"a", 2}}); }), HasSubstr("two values are called 'a'"));
  EXPECT_THAT(error([&] { log.add(-1, {}); }), HasSubstr("step -1"));
  EXPECT_THAT(error([&] { log.add(1, {{"a", zeros({2})}}); }), HasSubstr("'a' is (2,), not one element"));
  EXPECT_THAT(error([&] { log.add(1, {{"a", NDArray()}}); }), HasSubstr("an empty handle"));
  EXPECT_FALSE(std::filesystem::exists(file()));
  EXPECT_THAT(error([&] { nn::Log(""); }), HasSubstr("the path is empty"));
  log.add(1, {{"a", 1}});
  std::filesystem::remove_all(folder_ / "out");
  // It wants a column, and the file is gone.
  EXPECT_THAT(error([&] {
                log.add(2, {{"b", 2}});
                log.flush();
              }),
              HasSubstr("run.csv: cannot read"));
  log.flush();  // said once
  EXPECT_THAT(error([&] {
                log.add(3, {{"b", zeros({})}});
                log.flush();
              }),
              HasSubstr("cannot read"));
  std::filesystem::create_directories(folder_ / "folder");
  EXPECT_THAT(error([&] { nn::Log((folder_ / "folder").string()).add(1, {}); }), HasSubstr("not a regular file"));
  EXPECT_THAT(error([&] { nn::Log("/dev/null").add(1, {}); }), HasSubstr("not a regular file"));
  write_file(folder_ / "other.csv", "x,y\n1,2\n");
  nn::Log other((folder_ / "other.csv").string());
  other.set_position({{"step", 0}});
  EXPECT_THAT(error([&] { other.add(1, {}); }), HasSubstr("it is no log"));
  EXPECT_EQ(read_file(folder_ / "other.csv"), "x,y\n1,2\n");
}

TEST(LogTable, CellsComeBack) {
  const std::vector<std::string> cells{"a", "", "b,c", "d\"e\"", ",\""};
  std::string line;
  for (std::size_t i = 0; i < cells.size(); ++i) line += (i ? "," : "") + nn::detail::csv_text(cells[i]);
  EXPECT_EQ(nn::detail::csv_cells(line), cells);
}

// ---- TensorBoard

/// The fields of a message: a number, and a varint, or the bytes of what is there.
std::vector<std::pair<int, std::string>> fields_of(const std::string& message) {
  std::vector<std::pair<int, std::string>> fields;
  std::size_t at = 0;
  const auto varint = [&] {
    std::uint64_t x = 0;
    for (int shift = 0;; shift += 7) {
      const auto byte = static_cast<unsigned char>(message.at(at++));
      x |= std::uint64_t{byte & 0x7fU} << shift;
      if (byte < 0x80) return x;
    }
  };
  while (at < message.size()) {
    const std::uint64_t tag = varint();
    std::size_t size = tag % 8 == 1 ? 8 : 4;
    if (tag % 8 == 0) {
      fields.emplace_back(tag >> 3, std::to_string(varint()));
      continue;
    }
    if (tag % 8 == 2) size = varint();
    fields.emplace_back(tag >> 3, message.substr(at, size));
    at += size;
  }
  return fields;
}

template <class T>
T number_in(const std::string& bytes, std::size_t at = 0) {
  T x;
  std::memcpy(&x, bytes.substr(at, sizeof x).data(), sizeof x);
  return x;
}

std::uint32_t unmasked(std::uint32_t x) { return std::rotl(x - 0xa282ead8U, 15); }

/// The events of a file, whose checksums are right.
std::vector<std::string> events_in(const std::string& bytes) {
  std::vector<std::string> events;
  for (std::size_t at = 0; at < bytes.size();) {
    const auto size = number_in<std::uint64_t>(bytes, at);
    EXPECT_EQ(unmasked(number_in<std::uint32_t>(bytes, at + 8)), nn::detail::crc32c(bytes.substr(at, 8)));
    events.push_back(bytes.substr(at + 12, size));
    EXPECT_EQ(unmasked(number_in<std::uint32_t>(bytes, at + 12 + size)), nn::detail::crc32c(events.back()));
    at += 16 + size;
  }
  return events;
}

TEST_F(Logs, ForTensorBoard) {
  EXPECT_EQ(nn::detail::crc32c("123456789"), 0xe3069283U);  // the check value of CRC-32C
  const auto run = [&](std::int64_t from) {
    nn::Log log(file(), {.tensorboard = (folder_ / "board").string()});
    if (from > 0) log.set_position({{"step", from}});
    log.add(from + 1, {{"loss/train", full({}, 0.25)}, {"rate", 2}});
  };
  run(0);
  const auto file_of = [&](std::size_t size) {
    std::vector<std::string> files;
    for (const auto& entry : std::filesystem::directory_iterator(folder_ / "board")) files.push_back(entry.path());
    EXPECT_EQ(files.size(), size);
    std::sort(files.begin(), files.end());
    return files.empty() ? std::string() : read_file(files.back());
  };
  std::vector<std::string> events = events_in(file_of(1));
  ASSERT_EQ(events.size(), 3U);
  EXPECT_EQ(fields_of(events[0]).at(1), std::pair(3, std::string("brain.Event:2")));
  auto fields = fields_of(events[2]);
  ASSERT_EQ(fields.size(), 3U);
  EXPECT_GT(number_in<double>(fields[0].second), 1.7e9);
  EXPECT_EQ(fields[1], std::pair(2, std::string("1")));
  EXPECT_EQ(fields[2].first, 5);
  const auto values = fields_of(fields[2].second);
  ASSERT_EQ(values.size(), 2U);
  const auto first = fields_of(values[0].second), second = fields_of(values[1].second);
  EXPECT_EQ(first.at(0), std::pair(1, std::string("loss/train")));
  EXPECT_EQ(number_in<float>(first.at(1).second), .25F);
  EXPECT_EQ(second.at(0), std::pair(1, std::string("rate")));
  EXPECT_EQ(number_in<float>(second.at(1).second), 2.F);
  run(1000);  // another file, which begins at step 1001
  events = events_in(file_of(2));
  ASSERT_EQ(events.size(), 3U);
  fields = fields_of(events[1]);
  EXPECT_EQ(fields.at(1), std::pair(2, std::string("1001")));
  EXPECT_EQ(fields.at(2).first, 7);
}

// ---- progress and patience

class Shown {
 public:
  ~Shown() { std::fclose(file_); }
  std::FILE* file() const { return file_; }
  std::string text() const {
    std::fflush(file_);
    std::string all(static_cast<std::size_t>(std::ftell(file_)), ' ');
    std::rewind(file_);
    all.resize(std::fread(all.data(), 1, all.size(), file_));
    return all;
  }

 private:
  std::FILE* file_ = std::tmpfile();
};

TEST(Progress, PlainLinesForEachTenth) {
  Shown shown;
  double now = 100;
  {
    nn::Progress progress("train", 200, {.samples = 32, .to = shown.file(), .now = [&] { return now; }}, 40);
    for (int step = 41; step <= 200; ++step) {
      now += step < 100 ? 0.5 : 20;
      if (step % 7 == 0 || step == 200) progress.show(step, step == 63 ? "" : "loss 1.5");
    }
    progress.show(200, "once");
  }
  EXPECT_EQ(shown.text(),
            "train  31 %  2 steps/s, 64 samples/s, 1:09 left\n"
            "train  42 %  loss 1.5, 2 steps/s, 64 samples/s, 0:58 left\n"
            "train  52 %  loss 1.5, 0.435 steps/s, 13.9 samples/s, 3:39 left\n"
            "train  63 %  loss 1.5, 0.151 steps/s, 4.83 samples/s, 8:10 left\n"
            "train  70 %  loss 1.5, 0.118 steps/s, 3.77 samples/s, 8:30 left\n"
            "train  80 %  loss 1.5, 0.0953 steps/s, 3.05 samples/s, 6:49 left\n"
            "train  91 %  loss 1.5, 0.084 steps/s, 2.69 samples/s, 3:34 left\n"
            "train 100 %  loss 1.5, 0.0781 steps/s, 2.5 samples/s, 34:10\n");
}

TEST(Progress, OneLineOnATerminal) {
  Shown shown;
  double now = 0;
  nn::Progress progress("t", 4, {.to = shown.file(), .terminal = true, .now = [&] { return now; }});
  progress.show(0);
  now = 0.05;
  progress.show(1);  // too soon to be seen
  now = 3600;
  progress.show(2, "half");
  progress.leave();
  now = 7200;
  progress.show(4);
  const std::string once = shown.text();
  const std::string none = "····························", half = "██████████████··············";
  EXPECT_EQ(once, "\rt " + none + "   0 %\033[K\rt " + half +
                      "  50 %  half, 0.000556 steps/s, 1:00:00 left\033[K\n\rt "
                      "████████████████████████████ 100 %  0.000556 steps/s, 2:00:00\033[K\n");
  progress.show(4);
  progress.show(5, "more");
  EXPECT_EQ(shown.text(), once);
  EXPECT_THAT(error([] { nn::Progress("none", 0); }), HasSubstr("0 of 0 steps"));
  // Percents are rounded down, and of any number.
  for (const std::int64_t by : {std::int64_t{1}, std::int64_t{1} << 40}) {
    Shown other;
    nn::Progress all("t", 100 * by, {.to = other.file(), .terminal = false, .now = [] { return 0.0; }});
    for (const std::int64_t done : {29, 57, 100}) all.show(done * by);
    EXPECT_EQ(other.text(), "t  29 %\nt  57 %\nt 100 %\n") << by;
  }
}

/// Asked of the system: whether it is a terminal, and how wide. A line longer than that would wrap, and be left there.
TEST(Progress, ATerminalIsKnownAndItsWidthKept) {
  int screen = -1, terminal = -1;
  const winsize size{.ws_row = 24, .ws_col = 40, .ws_xpixel = 0, .ws_ypixel = 0};
  ASSERT_EQ(::openpty(&screen, &terminal, nullptr, nullptr, &size), 0);
  std::FILE* const to = ::fdopen(terminal, "w");
  {
    double now = 0;
    nn::Progress progress("train", 2, {.to = to, .now = [&] { return now; }});
    now = 1;
    progress.show(1, "loss 1.5");
    now = 2;
    progress.show(2, "loss 1.4");
  }
  std::fclose(to);
  std::string text;
  char some[256];
  for (ssize_t n = 0; (n = ::read(screen, some, sizeof(some))) > 0;) text.append(some, static_cast<std::size_t>(n));
  ::close(screen);
  EXPECT_EQ(text,
            "\rtrain ██████████████··············  50 \033[K"
            "\rtrain ████████████████████████████ 100 \033[K\r\n");  // 39 columns
}

TEST(Patience, CountsWhatIsNoBetter) {
  nn::Patience patience{.most = 2, .least_gain = 0.1};
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_FALSE(patience.better(nan));
  EXPECT_TRUE(patience.better(1));
  EXPECT_EQ(patience.tries, 0);
  EXPECT_FALSE(patience.better(0.95));
  EXPECT_FALSE(patience.over());
  EXPECT_FALSE(patience.better(nan));
  EXPECT_TRUE(patience.over());
  EXPECT_TRUE(patience.better(0.5));
  EXPECT_FALSE(patience.over());
  nn::Patience accuracy{.higher = true};
  EXPECT_TRUE(accuracy.better(0.5));
  EXPECT_FALSE(accuracy.better(0.4));
  EXPECT_TRUE(accuracy.better(0.6));
  // In another process.
  const TemporaryDirectory folder;
  const std::string path = (folder / "p.safetensors").string();
  nn::save(path, {{"best", patience.best}, {"tries", patience.tries}});
  nn::Patience again{.most = 2};
  nn::load(path, {{"best", again.best}, {"tries", again.tries}});
  EXPECT_EQ(again.best, 0.5);
  EXPECT_EQ(again.tries, 0);
}

}  // namespace
}  // namespace sluice
