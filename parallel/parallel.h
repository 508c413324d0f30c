// Model parallelism: pipelines, sharded layers, collectives, and schedules as data.
#pragma once

#include "sluice/parallel/collectives.h"    // all_reduce over devices of one process
#include "sluice/parallel/generators.h"     // GPipe, 1F1B, interleaved, zero-bubble and dynamic schedules
#include "sluice/parallel/pipeline.h"       // stages on devices, run by a schedule
#include "sluice/parallel/plan.h"           // the planner, from a network and its devices
#include "sluice/parallel/planner.h"        // cut, schedule and microbatches from what layers cost
#include "sluice/parallel/render.h"         // timelines as pictures and traces
#include "sluice/parallel/schedule.h"       // lists of actions, and what they wait for
#include "sluice/parallel/schedule_text.h"  // a user's own schedules
#include "sluice/parallel/sharded.h"        // column- and row-sharded layers
#include "sluice/parallel/simulate.h"       // a schedule's time and memory on paper
#include "sluice/parallel/timeline.h"       // a schedule's time as measured
#include "sluice/parallel/verify.h"         // refuses schedules that cannot finish
