/* A lane: the ready queue, its drainers, and how none of them sleeps while there is work (engine/detail/core_lanes.h:
   enqueue, wake; core_drain.h: drain, work; core_wait.h: block).

   One step is one atomic operation. The queue is no sequentially consistent object: whether a look at it finds an op
   depends on what the looker must have seen. `sees` holds, for each thread, the enqueues that happened before; fences
   and the counters (all sequentially consistent) hand it on. An op in the queue that is not in it may be found or not. */

#ifndef WIDTH
#define WIDTH 1
#endif
#ifndef OPS
#define OPS 3
#endif
#ifndef DRAINERS
#define DRAINERS 2
#endif
#define NOBODY 255
#define BIT(o) (1 << (o))
#define ALL (BIT(OPS) - 1)

/* ---- the program */
byte pusher[OPS];    /* who enqueues it; NOBODY: the op freed_by */
byte freed_by[OPS];
byte waits_for[OPS]; /* its body waits for that op */

/* ---- the protocol's data */
byte queued;
byte drainers, blocked, spinning;  /* Lane::active and so on */
byte published, counters_see;  /* what fences and counters hand on */
byte sees[DRAINERS + 2];       /* of each thread: drainers, then pushers */
bool here[DRAINERS];           /* a thread has been started, and has not ended */
byte begun, done;
byte running;  /* bodies that are not in a wait */

#if DRAINERS > 2
#define IDLE (!here[0] -> 0 : (!here[1] -> 1 : (!here[2] -> 2 : 3)))
#else
#define IDLE (!here[0] -> 0 : (!here[1] -> 1 : 2))
#endif

#define FENCE d_step { published = published | sees[me]; sees[me] = sees[me] | published }
/* On the counters, all operations of which are sequentially consistent. */
#define CHANGE(what) d_step { what; counters_see = counters_see | sees[me]; sees[me] = counters_see }
#define LOOK(what) d_step { what; sees[me] = sees[me] | counters_see }

inline wake() {
  LOOK(w_active = spinning);
  if
  :: w_active > 0
  :: else ->
    LOOK(w_active = drainers);
    do
    :: true ->
      LOOK(w_limit = WIDTH + blocked);
      if
      :: w_active >= w_limit -> break
      :: else
      fi;
      d_step {
        sees[me] = sees[me] | counters_see;
        if
        :: drainers == w_active -> drainers++; counters_see = counters_see | sees[me]; w_limit = NOBODY
        :: else -> w_active = drainers
        fi
      };
      if
      :: w_limit == NOBODY ->
        /* Any idle thread is as good as another: the first. */
        d_step {
          IDLE < DRAINERS -> w_limit = IDLE; here[w_limit] = true; sees[w_limit] = sees[me]
        };
        break
      :: else
      fi
    od
  fi;
  skip;
  d_step { w_active = 0; w_limit = 0 }
}

#ifdef WAKE_FIRST
/* Looks whether a drainer is needed, and puts the op in the queue after. */
#define ENQUEUE(o) wake(); d_step { queued = queued | BIT(o); sees[me] = sees[me] | BIT(o) }; FENCE
#else
#ifdef NO_FENCE
#define ENQUEUE(o) d_step { queued = queued | BIT(o); sees[me] = sees[me] | BIT(o) }; wake()
#else
#define ENQUEUE(o) d_step { queued = queued | BIT(o); sees[me] = sees[me] | BIT(o) }; FENCE; wake()
#endif
#endif

/* has_work: what it must have seen it finds; what it may have seen it finds or not. */
inline has_work(answer) {
  atomic {
    if
    :: queued -> answer = true
    :: (queued & sees[me]) == 0 -> answer = false
    fi
  }
}

inline take(o) {
  atomic {
    if
    :: (queued & sees[me]) == 0 -> o = NOBODY
    :: queued & BIT(0) -> o = 0
    :: queued & BIT(1) -> o = 1
    :: queued & BIT(2) -> o = 2
#if OPS > 3
    :: queued & BIT(3) -> o = 3
#endif
    fi;
    if
    :: o != NOBODY ->
      /* Who knew of it has nothing to know of it any more. */
      queued = queued & (255 - BIT(o)); published = published & queued; counters_see = counters_see & queued;
      sees[0] = sees[0] & queued; sees[1] = sees[1] & queued; sees[2] = sees[2] & queued; sees[3] = sees[3] & queued
#if DRAINERS > 2
      ; sees[4] = sees[4] & queued
#endif
    :: else
    fi
  }
}

inline run_body(o) {
  d_step {
    assert(!(begun & BIT(o)));
    begun = begun | BIT(o);
    running++;
    assert(running <= WIDTH + 1)  /* one more only until the op whose wait is over returns */
  };
  if
  :: waits_for[o] == NOBODY || (done & BIT(waits_for[o]))
  :: else ->
    /* block() */
    d_step { blocked++; running--; counters_see = counters_see | sees[me]; sees[me] = counters_see };
#ifndef WAIT_WITHOUT_FENCE
    FENCE;
#endif
#ifdef NO_SUBSTITUTE
    work = false;
#else
    has_work(work);
#endif
    if
    :: work -> wake()
    :: else
    fi;
    done & BIT(waits_for[o]);
    d_step { blocked--; running++; work = false; counters_see = counters_see | sees[me]; sees[me] = counters_see }
  fi;
  d_step { running--; done = done | BIT(o) }
}

proctype Pusher(byte who; byte me) {
  byte o = 0, w_active = 0, w_limit = 0;
  do
  :: o == OPS -> break
  :: o < OPS && pusher[o] != who -> o++
  :: o < OPS && pusher[o] == who ->
    ENQUEUE(o);
    o++
  od
}

proctype Drainer(byte me) {
  byte o = NOBODY, i = 0, w_active = 0, w_limit = 0;
  bool work = false, again = false;
end:
  here[me];
  do
  :: true ->
    /* work() */
    do
    :: true ->
      take(o);
      if
      :: o == NOBODY ->
#if WIDTH > 1
        CHANGE(spinning++);
        take(o);
        CHANGE(spinning--);
        if
        :: o == NOBODY -> break
        :: else
        fi;
        FENCE;
        has_work(work);
        if
        :: work -> wake()
        :: else
        fi;
        work = false
#else
        break
#endif
      :: else
      fi;
      run_body(o);
      i = 0;
      do
      :: i == OPS -> break
      :: i < OPS && freed_by[i] != o -> i++
      :: i < OPS && freed_by[i] == o -> ENQUEUE(i); i++
      od;
      o = NOBODY; i = 0;
      if
      :: drainers > WIDTH + blocked -> break
      :: else
      fi
    od;
    o = NOBODY;
    CHANGE(drainers--);
#ifndef LEAVE_WITHOUT_FENCE
    FENCE;
#endif
    again = false;
#ifndef NO_SECOND_LOOK
    has_work(work);
    if
    :: work ->
      work = false;
      LOOK(w_active = drainers);
      do
      :: true ->
        LOOK(w_limit = WIDTH + blocked);
        if
        :: w_active >= w_limit -> break
        :: else
        fi;
        d_step {
          sees[me] = sees[me] | counters_see;
          if
          :: drainers == w_active -> drainers++; again = true; counters_see = counters_see | sees[me]
          :: else -> w_active = drainers
          fi
        };
        if
        :: again -> break
        :: else
        fi
      od;
      skip;
      d_step { w_active = 0; w_limit = 0 }
    :: else
    fi;
#endif
    if
    :: again -> again = false
    :: else -> break
    fi
  od;
  skip;
  d_step { sees[me] = 0; here[me] = false };
  goto end
}

init {
  d_step {
    pusher[0] = 0; pusher[1] = 1; pusher[2] = 0;
    freed_by[0] = NOBODY; freed_by[1] = NOBODY; freed_by[2] = NOBODY;
    waits_for[0] = NOBODY; waits_for[1] = NOBODY; waits_for[2] = NOBODY;
#if OPS > 3
    pusher[3] = NOBODY; freed_by[3] = 1; waits_for[3] = NOBODY;
#endif
#if PROGRAM == 2
    /* An op that waits for one that is enqueued after it, by the other pusher: the lane needs a substitute. */
    waits_for[0] = 1; pusher[2] = NOBODY; freed_by[2] = 1
#elif PROGRAM == 3
    waits_for[0] = 2; pusher[2] = 1; pusher[1] = 0
#endif
  };
  atomic {
    run Pusher(0, DRAINERS); run Pusher(1, DRAINERS + 1);
    run Drainer(0); run Drainer(1)
#if DRAINERS > 2
    ; run Drainer(2)
#endif
  };
  /* Blocks for ever, and Spin says so, unless every op runs and every drainer leaves. */
  atomic {
    done == ALL && drainers == 0;
    assert(queued == 0 && blocked == 0 && spinning == 0 && running == 0)
  }
}
