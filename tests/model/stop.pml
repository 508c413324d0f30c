/* Pushes against stop(), and a thread that waits for an op's end (engine/detail/core_push.h: begin_push, abandon_push,
   commit_push; core_stop.h: stop, wait_live; core_wait.h: await_ticket; core_run.h: finish; core_setup.h: in_flight).

   Each pusher has a slot with the pushes that it began; the worker has one with the ops it completed. What a stop relies
   on: it sees each push that does not see the stop, and the op's end tells who registered in the op's word. */

#define PUSHERS 2
#ifndef EACH
#define EACH 1
#endif
#define OPS (PUSHERS * EACH)
#define BIT(o) (1 << (o))

/* RecordState */
#define LIVE 1
#define RUNNING 2
#define WAITED 4

bool stopped;
byte pushes[PUSHERS];  /* begun; the bit that marks a link in progress is left out: nothing here looks at it */
byte completed[2];     /* of each worker */
byte word[OPS];
byte queued;
bool told[OPS];        /* the ticket's waiter, if it registered */
bool locked;           /* ticket_mutex */
byte refused, ran;     /* bits of ops: each push ends in one of the two */
bool returned;         /* stop() has */

proctype Pusher(byte me) {
  byte o = me * EACH, count = 0;
  do
  :: o == (me + 1) * EACH -> break
  :: else ->
    if
    :: stopped -> refused = refused | BIT(o)
    :: else ->
#ifdef LOOK_BEFORE_COUNT
      if
      :: stopped -> refused = refused | BIT(o)
      :: else -> count++; pushes[me] = count; goto commit
      fi;
#else
      count++;
      pushes[me] = count;
#ifndef NO_SECOND_LOOK
      if
      :: stopped ->
        count--;
        pushes[me] = count;
        refused = refused | BIT(o)
      :: else -> goto commit
      fi
#else
      goto commit
#endif
#endif
    fi;
    goto next;
commit:
    word[o] = LIVE;
    d_step { assert(!returned); queued = queued | BIT(o) };
next:
    o++
  od
}

proctype Worker(byte me) {
  byte o = 0, old = 0, count = 0;
end:
  do
  :: atomic {
      if
      :: queued & BIT(0) -> o = 0
      :: queued & BIT(1) -> o = 1
#if OPS > 2
      :: queued & BIT(2) -> o = 2
      :: queued & BIT(3) -> o = 3
#endif
      fi;
      queued = queued & (255 - BIT(o))
    };
    word[o] = word[o] | RUNNING;
#ifdef COUNT_FIRST
    count++;
    completed[me] = count;
#endif
    d_step { assert(!returned && !(ran & BIT(o))); ran = ran | BIT(o) };
    assert(!returned);
#ifndef COUNT_FIRST
    count++;
    completed[me] = count;
#endif
    /* drop: the state goes, and who is noted in it is told. */
#ifdef DROP_IN_TWO
    old = word[o];
    word[o] = 0;
#else
    d_step { old = word[o]; word[o] = 0 };
#endif
    if
    :: old & WAITED ->
      d_step { !locked -> locked = true };
      d_step { told[o] = true; locked = false }
    :: else
    fi;
    d_step { o = 0; old = 0 }
  od
}

/* in_flight: a look at each slot; what completes between counts as in flight. */
inline in_flight(answer) {
  d_step { done = 0; begun = 0 };
  done = done + completed[0];
  done = done + completed[1];
  begun = begun + pushes[0];
  begun = begun + pushes[1];
  d_step { answer = begun > done; begun = 0; done = 0 }
}

proctype Stop() {
  byte o = 0, begun = 0, done = 0, live = 0, seen = 0;
  bool flies = true, noted = false;
  stopped = true;
  do
  :: true ->
    in_flight(flies);
    if
    :: !flies -> break
    :: else
    fi;
    /* wait_live: the words of all records, then a wait for each op that lives. */
    do
    :: o == OPS -> o = 0; break
    :: o < OPS ->
      d_step {
        if
        :: word[o] & LIVE -> live = live | BIT(o)
        :: else
        fi
      };
      o++
    od;
    do
    :: o == OPS -> o = 0; break
    :: o < OPS && !(live & BIT(o)) -> o++
    :: o < OPS && (live & BIT(o)) ->
      /* await_ticket */
      d_step { !locked -> locked = true };
      d_step {
        if
        :: word[o] & LIVE -> word[o] = word[o] | WAITED; noted = true
        :: else -> noted = false
        fi
      };
      locked = false;
      if
      :: noted -> told[o]
      :: else
      fi;
      d_step { live = live & (255 - BIT(o)); noted = false };
      o++
    od
  od;
  skip;
  d_step { assert(queued == 0); returned = true }
}

init {
  atomic { run Pusher(0); run Pusher(1); run Worker(0); run Worker(1); run Stop() };
  atomic { returned && (refused | ran) == BIT(OPS) - 1; assert((refused & ran) == 0 && queued == 0) }
}

#ifdef ENDS
/* Stop returns, whatever is pushed, if every thread goes on. */
ltl ends { <> returned }
#endif
