// Pipeline schedules as data: proved, timed, planned and drawn, without arrays, engine or devices.
#pragma once

#include "sluice/schedule/action_lists.h"   // for each device its actions, and what they wait for
#include "sluice/schedule/generators.h"     // GPipe, 1F1B, interleaved, zero-bubble and dynamic schedules
#include "sluice/schedule/planner.h"        // cut, schedule and microbatches from what layers cost
#include "sluice/schedule/program_order.h"  // the order in which one thread pushes a schedule
#include "sluice/schedule/render.h"         // timelines as pictures and traces
#include "sluice/schedule/schedule_text.h"  // a user's own schedules
#include "sluice/schedule/simulate.h"       // a schedule's time and memory on paper
#include "sluice/schedule/timeline.h"       // a schedule's time as measured
#include "sluice/schedule/verify.h"         // refuses schedules that cannot finish
