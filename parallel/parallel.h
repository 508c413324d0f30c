// Model parallelism: pipelines, sharded layers, collectives, and all of schedule/.
#pragma once

#include "sluice/parallel/collectives.h"  // all_reduce over devices of one process
#include "sluice/parallel/pipeline.h"     // stages on devices, run by a schedule
#include "sluice/parallel/plan.h"         // the planner, from a network and its devices
#include "sluice/parallel/sharded.h"      // column- and row-sharded layers
#include "sluice/schedule/schedule.h"
