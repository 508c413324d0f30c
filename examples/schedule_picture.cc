// A pipeline schedule as text in; the proof that it comes to its end, its time on paper and a picture out. It needs
// schedules alone: no arrays, no engine, no devices.
//   schedule_picture [SCHEDULE.txt [PICTURE.svg]]
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "sluice/schedule/schedule.h"

using namespace sluice::parallel;

int main(int argc, char** argv) try {
  const std::string own = "s0 F0-1 F2 B0 F3 B1-3\ns1 F0 B0 F1 B1 F2 B2 F3 B3\n",
                    picture = argc > 2 ? argv[2] : "schedule.svg";
  const Schedule schedule = argc > 1 ? load_schedule(argv[1]) : parse_schedule(own, "example");  // refused: throws
  const std::vector<StageCost> costs(static_cast<std::size_t>(schedule.stages), cost_of_halves(1e-3, 1e-3, 1e-3));
  const Simulation run = simulate(schedule, costs);
  write_file(picture, render_svg(to_timeline(run), {.title = schedule.name}));
  std::printf(
      "'%s' comes to its end on %d devices; if F, I and W took 1 ms each, in %.0f ms with a bubble of %.1f %%\n%s",
      schedule.name.c_str(), schedule.devices(), 1e3 * run.span, 100 * run.bubble, to_text(schedule).c_str());
} catch (const std::exception& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
