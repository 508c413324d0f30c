/* The cap: credits for ops, a pusher that parks, and who wakes it (engine/detail/core_caps.h; core_run.h: finish;
   core_drain.h: drain, which gives the held-back credits home before it says that nothing is running).

   The parker's time limit, which would hide a lost wake-up, is left out, but where ops are held for ever. */

#ifndef MAX
#define MAX 2       /* max_ops */
#endif
#define BATCH 2     /* credit_batch */
#define PUSHERS 2
#ifndef EACH
#define EACH 2
#endif
#ifndef HELD
#define HELD 0      /* ops that await a Completion all the while */
#endif

short credits = MAX - HELD;
byte waiters;
bool parked[PUSHERS], signalled[PUSHERS];
byte queued, in_flight = HELD, finished;
byte progress;      /* pushes begun and ops finished */
bool linking[PUSHERS];
bool running[2];  /* each drainer's activity */

inline wake_waiters() {
  d_step {
    if
    :: parked[0] -> signalled[0] = true
    :: else
    fi;
    if
    :: parked[1] -> signalled[1] = true
    :: else
    fi
  }
}

/* return_credits and flush */
inline return_credits(count) {
#ifdef LOOK_FIRST
  /* Looks for waiters before the credits are there. */
  seen = waiters;
  credits = credits + count;
#else
  credits = credits + count;
  seen = waiters;
#endif
  if
  :: seen -> wake_waiters()
  :: else
  fi;
  d_step { count = 0; seen = 0 }
}

/* One look after another: queues, pushers that link, drainers. */
inline anything_moves(answer) {
  if
  :: answer
  :: else ->
    answer = queued > 0;
    answer = answer || linking[0];
    answer = answer || linking[1];
    answer = answer || running[0];
    answer = answer || running[1]
  fi
}

proctype Pusher(byte me) {
  byte pushed = 0, mine = 0, before = 0;
  bool moves = false, no_room = false;
  do
  :: pushed == EACH -> break
  :: else ->
    /* take_credit */
    do
    :: mine > 0 -> break
    :: else ->
      if
      :: credits > 0 ->
        /* grab_credits: a compare-exchange; few are left, so one. The guard was a look: another may be quicker. */
        d_step {
          if
          :: credits > 0 -> credits--; mine++
          :: else
          fi
        }
      :: else ->
        /* park_at_cap */
        parked[me] = true;
        waiters++;
        before = progress;
        no_room = credits <= 0;
        moves = !no_room;
        anything_moves(moves);
#ifndef NO_SECOND_LOOK
        no_room = credits <= 0;
#else
        no_room = true;
#endif
        if
        :: moves && no_room ->
          if
          :: d_step { signalled[me] -> signalled[me] = false }
#if HELD
          :: true  /* The time limit: where no credit comes home there is nobody to wake this one. */
#endif
          fi
        :: else
        fi;
        waiters--;
        d_step { parked[me] = false; signalled[me] = false };
        if
        :: moves
        :: else ->
          /* Nothing is ready or running, and still nothing is there: on to the hard cap. A look goes from one place to
             the next, and may miss an op that goes the other way: that is progress. */
          moves = credits > 0;
          anything_moves(moves);
#ifndef ONLY_LOOKS
          moves = moves || progress != before;
#endif
          if
          :: moves
          :: else ->
            d_step {
              if
              :: credits > -3 * MAX -> credits--; mine++
              :: else
              fi
            }
          fi
        fi;
        d_step { moves = false; no_room = false; before = 0 }
      fi
    od;
    skip;
    d_step {
      mine--; in_flight++; progress++; linking[me] = true;
      assert(in_flight <= MAX - credits && credits >= -3 * MAX);
      /* Where all ops run the cap holds. Where none does, each pusher may take one more before it sees the other's. */
      assert(in_flight <= MAX || (HELD > 0 && in_flight <= MAX + PUSHERS))
    };
    queued++;
    linking[me] = false;
    pushed++
  od
  /* What is left of the credits stays with the thread's slot until it ends. */
}

proctype Drainer(byte me) {
  byte back = 0, seen = 0;
end:
  do
  :: queued > 0 ->
    /* A drainer is running before it takes an op, and until it has given its credits home. */
    running[me] = true;
    do
    :: true ->
      d_step {
        if
        :: queued > 0 -> queued--; seen = 1
        :: else -> seen = 0
        fi
      };
      if
      :: seen ->
#ifdef CREDIT_FIRST
        /* The credit goes home before the op is over. */
        back++;
        if
        :: back >= BATCH -> return_credits(back)
        :: else
        fi;
        d_step { in_flight--; finished++; progress++ }
#else
        d_step { in_flight--; finished++; progress++ };
        back++;
        if
        :: back >= BATCH -> return_credits(back)
        :: else
        fi
#endif
      :: else -> break
      fi
    od;
#ifndef NO_FLUSH
    if
    :: back -> return_credits(back)
    :: else
    fi;
#endif
    running[me] = false
  od
}

init {
  atomic { run Pusher(0); run Pusher(1); run Drainer(0); run Drainer(1) };
  atomic { finished == PUSHERS * EACH; assert(queued == 0 && in_flight == HELD) };
  /* Every credit comes home. */
  credits == MAX - HELD
}
