// Model parallelism by pipelines: what runs and plans them, and all of schedule/.
#pragma once

#include "sluice/parallel/loss.h"      // what a pipeline's microbatches divide their losses by
#include "sluice/parallel/pipeline.h"  // stages on devices, run by a schedule
#include "sluice/parallel/plan.h"      // the planner, from a net and its devices
#include "sluice/schedule/schedule.h"
