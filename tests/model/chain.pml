/* The token protocol: link, rights down the chains, poison, waits, records retired (engine/detail/chain.h, record.h,
   core_push.h: link, core_run.h: execute, finish, process).

   One step here is one atomic operation there. Merged with a neighbour are only: plain and relaxed accesses to what no
   other thread sees yet or any more, and loops that do nothing between a load and the compare-exchange of its value.
   Host ops only, whose rights come in both strengths at once, so there is one bit for each pair. A spin is a guard. */

#ifndef OPS
#define OPS 3
#endif
#ifndef VARS
#define VARS 2
#endif
#ifndef WORKERS
#define WORKERS 2
#endif
#define TOKENS (OPS * VARS)
#define NONE 255

/* TokenState, both strengths in one bit. */
#define READ 1
#define WRITE 2
#define DONE 4
#define NEXT 8
#define MARKED 16
#define LEAVES 32
#define RIGHTS (READ | WRITE)
#define FINISHED (RIGHTS | DONE)
#define RETIRED (FINISHED | NEXT)

/* A tail: idle, idle and the variable is marked, held by a pusher, or a token. */
#define IDLE 0
#define IDLE_MARKED 1
#define LOCKED 2
#define TAIL(t) ((t) + 3)
#define TOKEN(tail) ((tail) - 3)
#define IS_IDLE(tail) ((tail) <= IDLE_MARKED)

/* Modes; those from m_update on are exclusive. */
#define m_none 0
#define m_read 1
#define m_update 2
#define m_write 3

#define EXCLUSIVE(t) (mode[t] >= m_update)
#define BIT(o) (1 << (o))
#define MINE(o, v) ((o) * VARS + (v))
#define OP(t) ((t) / VARS)
#define VAR(t) ((t) % VARS)

/* The mark that a token in state s hands on. */
#define MARK_OF(s, ex) (((s) & (ex -> LEAVES : MARKED)) != 0)
#define COMPLETE(s) (((s) & (WRITE | DONE)) == (WRITE | DONE))
#define READS_ON(s, ex) (ex -> COMPLETE(s) : ((s) & READ) != 0)
/* `alone`: the token or its successor is exclusive (kNextAlone), so that the right to read comes with that to write. */
#define PASSED(s, ex, alone) (((s) & NEXT) == 0 -> 0 : \
  ((READS_ON(s, (alone)) -> READ : 0) | (COMPLETE(s) -> WRITE : 0) | \
   ((READS_ON(s, (alone)) && MARK_OF(s, ex)) -> MARKED : 0)))
#define ALONE_FROM(t) (EXCLUSIVE(t) || EXCLUSIVE(next[t]))
/* Chain::advance stores such a state: nobody else can change it. */
#ifdef STORES_EARLY
#define STORED(old, now, ex) (((now) & RIGHTS) == RIGHTS)
#else
#define STORED(old, now, ex) (((old) & NEXT) && ((now) & RIGHTS) == RIGHTS && \
  ((((now) & DONE) && !((old) & DONE)) || !((old) & (ex -> WRITE : READ))))
#endif

/* ---- the program: who pushes what. */
byte pusher[OPS];   /* of each op */
byte mode[TOKENS];
bool waits[OPS];    /* a wait: no body; its pusher blocks until it is told */
bool fails[OPS];

/* ---- the protocol's data */
byte tail[VARS];
byte state[TOKENS];
byte next[TOKENS];
byte pending[OPS];      /* start_pending */
byte refs[OPS];         /* of OpRecord::word; zero: the record is free */
byte holds[VARS];       /* references to the variable: its handle, and one for a chain that has tokens */
byte root[VARS];        /* VariableNode::mark and its error: the op that failed, from 1 on */
byte queued;            /* bits of the ready ops in the lane's queue */
bool told[OPS];

/* ---- what must come out: the program run one by one, in the order in which the pushes took effect */
byte before[TOKENS], writers_before[TOKENS];  /* accesses of the variable linked before this one */
byte linked[VARS], writers_linked[VARS], over[VARS], writers_over[VARS];
byte serial_root[VARS];
byte expected[OPS];  /* zero: runs */
byte begun, completed;
byte gone;           /* ops that were freed */
bool retired[TOKENS];

#ifdef TRACED
#include "trace.pml"
#else
#define EVENT(what, op) skip
#endif

/* Nobody touches a token after it was retired, nor a record after it was freed. */
#define TOUCH(t) assert(refs[OP(t)] > 0 && !retired[t])

/* The push takes effect: the serial program's next step. */
inline takes_effect(o, v) {
  v = 0;
  do
  :: v == VARS -> break
  :: else ->
    if
    :: mode[MINE(o, v)] == m_none
    :: else ->
      before[MINE(o, v)] = linked[v];
      writers_before[MINE(o, v)] = writers_linked[v];
      linked[v]++;
      if
      :: EXCLUSIVE(MINE(o, v)) -> writers_linked[v]++
      :: else
      fi;
      if
      :: expected[o] == 0 && mode[MINE(o, v)] != m_write -> expected[o] = serial_root[v]
      :: else
      fi
    fi;
    v++
  od;
  v = 0;
  do
  :: v == VARS -> break
  :: else ->
    if
    :: EXCLUSIVE(MINE(o, v)) ->
      serial_root[v] = (expected[o] -> expected[o] : (fails[o] -> o + 1 : (mode[MINE(o, v)] == m_write -> 0 : serial_root[v])))
    :: else
    fi;
    v++
  od;
  v = 0
}

/* A body, from its first to its last step, has what it reads to itself but for readers. */
#define ALONE(t) (mode[t] == m_none || \
  (writers_over[VAR(t)] == writers_before[t] && (!EXCLUSIVE(t) || over[VAR(t)] == before[t])))

/* drop(op, count): at zero the record is free. */
inline drop(o, count) {
  assert(refs[o] >= count);
  refs[o] = refs[o] - count;
  if
  :: refs[o] == 0 -> gone++
  :: else
  fi
}

/* retire(): by another thread than the finisher one reference goes at once, the finisher counts. */
inline retire(t, self, count) {
  d_step {
    assert(!retired[t]);
    retired[t] = true;
    if
    :: OP(t) == self -> count++
    :: else -> drop(OP(t), 1)
    fi
#ifdef TWICE
    ;
    if
    :: OP(t) != self && (state[t] & NEXT) -> drop(OP(t), 1)
    :: else
    fi
#endif
  }
}

/* Chain::advance. What the loop uses is local: a_ are its variables. */
#define ADVANCE_LOCALS byte a_token = NONE, a_bits = 0, a_old = 0, a_now = 0, a_passed = 0, a_gained = 0, a_after = NONE; \
  bool a_detached = false, a_last = false, a_again = false

inline forget_locals() {
  a_token = NONE; a_bits = 0; a_old = 0; a_now = 0; a_passed = 0; a_gained = 0; a_after = NONE;
  a_detached = false; a_last = false; a_again = false
}

inline advance(token, bits, self, count, ready) {
  d_step { a_token = token; a_bits = bits };
  do
  :: a_token == NONE -> break
  :: else ->
    d_step { TOUCH(a_token); a_old = state[a_token] };
    do
    :: d_step { a_now = a_old | a_bits; a_again = false; a_detached = false };
#ifdef DETACH_LATE
      /* Says that it is done, and leaves the variable after. */
      d_step {
        TOUCH(a_token);
        if
        :: state[a_token] == a_old -> state[a_token] = a_now
        :: else -> a_old = state[a_token]; a_again = true
        fi
      };
      if
      :: !a_again && (a_now & RETIRED) == FINISHED ->
        d_step {
          TOUCH(a_token);
          if
          :: tail[VAR(a_token)] == TAIL(a_token) ->
            tail[VAR(a_token)] = (MARK_OF(a_now, EXCLUSIVE(a_token)) -> IDLE_MARKED : IDLE); a_detached = true
          :: else
          fi
        }
      :: else
      fi;
#else
      if
      :: (a_now & RETIRED) == FINISHED ->
        d_step {
          TOUCH(a_token);
          if
          :: tail[VAR(a_token)] == TAIL(a_token) ->
            tail[VAR(a_token)] = (MARK_OF(a_now, EXCLUSIVE(a_token)) -> IDLE_MARKED : IDLE); a_detached = true
          :: else
          fi
        }
      :: else
      fi;
      if
      :: a_detached
      :: else ->
        d_step {
          TOUCH(a_token);
          if
          :: state[a_token] == a_old -> state[a_token] = a_now
          :: else ->
            assert(!STORED(a_old, a_now, EXCLUSIVE(a_token)));
            a_old = state[a_token]; a_again = true
          fi
        }
      fi;
#endif
      if
      :: a_again
      :: else -> break
      fi
    od;
    skip;
    d_step {
      a_passed = 0; a_after = NONE;
      if
      :: a_now & NEXT ->
        a_after = next[a_token];
#ifdef RIGHTS_OF_NEW
        /* Passes what the new state passes, as if nothing had been passed before. */
        a_passed = PASSED(a_now, EXCLUSIVE(a_token), ALONE_FROM(a_token))
#else
        a_passed = PASSED(a_now, EXCLUSIVE(a_token), ALONE_FROM(a_token)) & (63 - PASSED(a_old, EXCLUSIVE(a_token), ALONE_FROM(a_token)))
#endif
      :: else
      fi;
#ifdef NO_POISON
      a_passed = a_passed & RIGHTS;
#endif
      a_last = a_detached || ((a_now & RETIRED) == RETIRED && (a_old & RETIRED) != RETIRED);
      a_gained = a_now & (63 - a_old) & RIGHTS
    };
    if
    :: a_gained & (EXCLUSIVE(a_token) -> WRITE : READ) ->
      d_step {
        assert(refs[OP(a_token)] > 0 && pending[OP(a_token)] > 0);
        pending[OP(a_token)]--;
        if
        :: pending[OP(a_token)] == 0 -> ready = ready | BIT(OP(a_token))
        :: else
        fi
      }
    :: else
    fi;
    if
    :: a_last ->
      retire(a_token, self, count);
      if
      :: a_detached -> d_step { assert(holds[VAR(a_token)] > 0); holds[VAR(a_token)]-- }
      :: else
      fi
    :: else
    fi;
    d_step { a_token = (a_passed -> a_after : NONE); a_bits = a_passed; a_passed = 0; a_gained = 0; a_last = false }
  od;
  skip;
  d_step { forget_locals() }
}

/* Core::finish. `why`: the root that the op was skipped for, or zero. */
inline finish(o, why, v, count, ready) {
  EVENT(e_done, o);
  d_step {
    v = 0;
    do
    :: v == VARS -> break
    :: else ->
      assert(ALONE(MINE(o, v)));
      v++
    od;
    v = 0;
    do
    :: v == VARS -> break
    :: else ->
      if
      :: mode[MINE(o, v)] == m_none
      :: else ->
        over[v]++;
        if
        :: EXCLUSIVE(MINE(o, v)) -> writers_over[v]++
        :: else
        fi
      fi;
      v++
    od;
    count = 1;
    v = 0
  };
  do
  :: v == VARS -> break
  :: v < VARS && mode[MINE(o, v)] == m_none -> v++
  :: v < VARS && mode[MINE(o, v)] != m_none ->
    /* pass_mark */
    d_step {
      TOUCH(MINE(o, v));
      assert(holds[v] > 0);
      a_bits = DONE;
      if
      :: EXCLUSIVE(MINE(o, v)) ->
        if
        :: why || fails[o] -> root[v] = (why -> why : o + 1); a_bits = DONE | LEAVES
        :: else ->
          if
          :: (state[MINE(o, v)] & MARKED) && mode[MINE(o, v)] == m_write -> root[v] = 0
          :: (state[MINE(o, v)] & MARKED) && mode[MINE(o, v)] != m_write -> a_bits = DONE | LEAVES
          :: else
          fi
        fi
      :: else
      fi
    };
    advance(MINE(o, v), a_bits, o, count, ready);
    v++
  od;
  completed++;
  d_step { drop(o, count); count = 0; v = 0 };
}

/* Core::process: what became ready, until nothing is left on this thread. */
inline process(ready, o, v, why, count) {
  do
  :: ready == 0 -> break
  :: else ->
    d_step {
      o = 0;
      do
      :: ready & BIT(o) -> break
      :: else -> o++
      od;
      ready = ready & (255 - BIT(o))
    };
    if
    :: waits[o] ->
      d_step { begin(o, v, why) };
      EVENT(e_start, o);
      d_step { root_of_wait = why; why = 0 };
      finish(o, 0, v, count, ready);
      d_step { assert(root_of_wait == expected[o]); told[o] = true; root_of_wait = 0 }
    :: else ->
      EVENT(e_ready, o);
      d_step { assert(!(queued & BIT(o))); queued = queued | BIT(o) }
    fi
  od;
  skip;
  d_step { o = 0 }
}

/* An op begins: it is its turn in every variable, and what it finds poisoned is what the serial program finds. */
inline begin(o, v, why) {
  v = 0; why = 0;
  do
  :: v == VARS -> break
  :: else ->
    if
    :: mode[MINE(o, v)] != m_none ->
      assert(ALONE(MINE(o, v)));
      TOUCH(MINE(o, v));
      if
      :: why == 0 && mode[MINE(o, v)] != m_write && (state[MINE(o, v)] & MARKED) -> why = root[v]
      :: else
      fi
    :: else
    fi;
    v++
  od;
  v = 0;
  assert(why == expected[o]);
  assert(!(begun & BIT(o)));
  begun = begun | BIT(o)
}

/* grant: the first in its chain has all rights at once. */
#define GRANTED(tail_was) ((tail_was) == IDLE_MARKED -> RIGHTS | MARKED : RIGHTS)

/* Chain::link of one token (take_one), and of several. `p_was[v]`: what stood in the tail. */
inline link(o, v, n, ready) {
  if
  :: n == 1 ->
    do
    :: mode[MINE(o, v)] == m_none -> v++
    :: else -> break
    od;
    do
    :: d_step { tail[v] != LOCKED -> p_was[v] = tail[v] };
#ifdef STALE_IDLE
      /* Both idle values are one, and the mark is read beside the tail. */
      d_step {
        state[MINE(o, v)] = (IS_IDLE(p_was[v]) -> (root[v] -> RIGHTS | MARKED : RIGHTS) : 0);
        pending[o] = !IS_IDLE(p_was[v])
      };
#else
      d_step {
        state[MINE(o, v)] = (IS_IDLE(p_was[v]) -> GRANTED(p_was[v]) : 0);
        pending[o] = !IS_IDLE(p_was[v])
      };
#endif
      if
      :: IS_IDLE(p_was[v]) && !held -> d_step { holds[v]++; held = true }
      :: else
      fi;
      d_step {
        if
#ifdef STALE_IDLE
        :: tail[v] == p_was[v] || (IS_IDLE(tail[v]) && IS_IDLE(p_was[v])) ->
#else
        :: tail[v] == p_was[v] ->
#endif
          tail[v] = TAIL(MINE(o, v));
          took = true;
          n_link = v;
          takes_effect(o, v);
          v = n_link; n_link = 0
        :: else
        fi
      };
      if
      :: took -> break
      :: else
      fi
    od;
    EVENT(e_link, o);
    if
    :: held && !IS_IDLE(p_was[v]) -> d_step { assert(holds[v] > 1); holds[v]-- }
    :: else
    fi;
    d_step { held = false; took = false };
    if
    :: IS_IDLE(p_was[v]) -> ready = ready | BIT(o)
    :: else -> connect(o, v, ready)
    fi
  :: n > 1 ->
    do
    :: v == VARS -> break
    :: v < VARS && mode[MINE(o, v)] == m_none -> v++
    :: v < VARS && mode[MINE(o, v)] != m_none ->
#ifdef NO_LOCK_MARK
      d_step { tail[v] != LOCKED -> p_was[v] = tail[v]; tail[v] = TAIL(MINE(o, v)); missing = missing + !IS_IDLE(p_was[v]);
               if :: IS_IDLE(p_was[v]) -> state[MINE(o, v)] = GRANTED(p_was[v]); holds[v]++ :: else fi };
#else
      d_step { tail[v] != LOCKED -> p_was[v] = tail[v]; tail[v] = LOCKED; missing = missing + !IS_IDLE(p_was[v]) };
#endif
      v++
    od;
    skip;
    d_step { pending[o] = missing; takes_effect(o, v) };
    EVENT(e_link, o);
    do
    :: v == VARS -> v = 0; break
    :: v < VARS && (mode[MINE(o, v)] == m_none || !IS_IDLE(p_was[v])) -> v++
    :: v < VARS && mode[MINE(o, v)] != m_none && IS_IDLE(p_was[v]) ->
#ifndef NO_LOCK_MARK
      d_step { state[MINE(o, v)] = GRANTED(p_was[v]); holds[v]++ };
      tail[v] = TAIL(MINE(o, v));
#endif
      v++
    od;
    if
    :: missing == 0 -> ready = ready | BIT(o)
    :: else ->
      do
      :: missing == 0 -> break
      :: missing > 0 && (mode[MINE(o, v)] == m_none || IS_IDLE(p_was[v])) -> v++
      :: missing > 0 && mode[MINE(o, v)] != m_none && !IS_IDLE(p_was[v]) ->
        missing--;
#ifndef NO_LOCK_MARK
        tail[v] = TAIL(MINE(o, v));
#endif
        connect(o, v, ready);
        v++
      od
    fi
  fi;
  skip;
  d_step {
    v = 0;
    do
    :: v == VARS -> break
    :: else -> p_was[v] = 0; v++
    od;
    v = 0; missing = 0
  }
}

/* Chain::connect: behind the token that stood in the tail. */
inline connect(o, v, ready) {
  d_step {
    c_before = TOKEN(p_was[v]);
    TOUCH(c_before);
    next[c_before] = MINE(o, v);
    c_old = state[c_before];
#ifdef OLD_RIGHTS
    /* Looks at the state first, and passes what that passes. */
  };
  d_step {
    TOUCH(c_before);
    state[c_before] = state[c_before] | NEXT;
#else
    state[c_before] = c_old | NEXT;
#endif
    c_passed = PASSED((c_old | NEXT), EXCLUSIVE(c_before), ALONE_FROM(c_before));
#ifdef NO_POISON
    c_passed = c_passed & RIGHTS;
#endif
    c_last = (c_old & FINISHED) == FINISHED
  };
#ifdef RETIRE_FIRST
  if
  :: c_last -> retire(c_before, NONE, c_old)
  :: else
  fi;
  TOUCH(c_before);
#endif
  if
  :: c_passed -> advance(MINE(o, v), c_passed, NONE, c_old, ready)
  :: else
  fi;
#ifndef RETIRE_FIRST
  if
  :: c_last -> retire(c_before, NONE, c_old)
  :: else
  fi;
#endif
  d_step { c_before = 0; c_old = 0; c_passed = 0; c_last = false }
}

proctype Pusher(byte me) {
  ADVANCE_LOCALS;
  byte o = 0, current = 0, v = 0, n = 0, n_link = 0, missing = 0, ready = 0, why = 0, count = 0, root_of_wait = 0;
  byte p_was[VARS];
  bool held = false, took = false;
  byte c_before = 0, c_old = 0, c_passed = 0;
  bool c_last = false;
  do
  :: current == OPS -> break
  :: current < OPS && pusher[current] != me -> current++
  :: current < OPS && pusher[current] == me ->
    /* set_accesses, open_word: nobody else knows of it yet. */
    d_step {
      n = 0; v = 0;
      do
      :: v == VARS -> break
      :: else -> n = n + (mode[MINE(current, v)] != m_none); v++
      od;
      v = 0;
      refs[current] = n + 1
    };
    link(current, v, n, ready);
    process(ready, o, v, why, count);
    if
    :: waits[current] -> told[current] -> skip
    :: else
    fi;
    current++
  od
}

proctype Worker() {
  ADVANCE_LOCALS;
  byte o = 0, current = 0, v = 0, ready = 0, why = 0, count = 0, root_of_wait = 0;
  do
  :: atomic {
      queued != 0 ->
      if
      :: queued & BIT(0) -> current = 0
#if OPS > 1
      :: queued & BIT(1) -> current = 1
#endif
#if OPS > 2
      :: queued & BIT(2) -> current = 2
#endif
#if OPS > 3
      :: queued & BIT(3) -> current = 3
#endif
#if OPS > 4
      :: queued & BIT(4) -> current = 4
#endif
#if OPS > 5
      :: queued & BIT(5) -> current = 5
#endif
      fi;
      queued = queued & (255 - BIT(current))
    };
    d_step { begin(current, v, why) };
    if
    :: why -> EVENT(e_skip, current)
    :: else -> EVENT(e_start, current)
    fi;
    finish(current, why, v, count, ready);
    d_step { current = 0; why = 0 };
    process(ready, o, v, why, count)
  :: completed == OPS -> break
  od
}

#define ACCESSES(o, a, b) mode[MINE(o, 0)] = a; mode[MINE(o, 1)] = b

init {
  byte i = 0;
#ifdef TRACED
  c_code { load(); };
#elif PROGRAM == 1
  /* Crossed two-variable ops of two pushers; one of them fails, and an update is skipped or not. */
  d_step {
    pusher[0] = 0; ACCESSES(0, m_update, m_read);
    pusher[1] = 0; ACCESSES(1, m_read, m_update);
    pusher[2] = 1; ACCESSES(2, m_update, m_write);
    fails[2] = true
  };
#elif PROGRAM == 2
  /* A failing writer, a reader and a healing writer on one variable, from two pushers. */
  d_step {
    pusher[0] = 0; ACCESSES(0, m_update, m_none);
    pusher[1] = 1; ACCESSES(1, m_read, m_none);
    pusher[2] = 1; ACCESSES(2, m_write, m_none);
    fails[0] = true
  };
#elif PROGRAM == 3
  /* An op that fails, and a wait that tells of it, against a reader of both. */
  d_step {
    pusher[0] = 0; ACCESSES(0, m_write, m_update);
    pusher[1] = 0; ACCESSES(1, m_read, m_none);
    pusher[2] = 1; ACCESSES(2, m_read, m_read);
    fails[0] = true; waits[1] = true
  };
#elif PROGRAM == 4
  /* Any three accesses of one variable, by one pusher; any of them may fail, any read may be a wait. */
  do
  :: i == OPS -> break
  :: i < OPS ->
    atomic {
      if
      :: mode[MINE(i, 0)] = m_read
      :: mode[MINE(i, 0)] = m_read; waits[i] = true
      :: mode[MINE(i, 0)] = m_update
      :: mode[MINE(i, 0)] = m_update; fails[i] = true
      :: mode[MINE(i, 0)] = m_write
      fi;
      i++
    }
  od;
#elif PROGRAM == 5
  /* Any two ops over two variables, from two pushers. */
  do
  :: i == OPS -> break
  :: i < OPS ->
    atomic {
      if
      :: mode[MINE(i, 0)] = m_none; mode[MINE(i, 1)] = m_update
      :: mode[MINE(i, 0)] = m_read; mode[MINE(i, 1)] = m_none
      :: mode[MINE(i, 0)] = m_read; mode[MINE(i, 1)] = m_read
      :: mode[MINE(i, 0)] = m_read; mode[MINE(i, 1)] = m_write
      :: mode[MINE(i, 0)] = m_update; mode[MINE(i, 1)] = m_read
      :: mode[MINE(i, 0)] = m_write; mode[MINE(i, 1)] = m_update
      fi;
      if
      :: fails[i] = true
      :: skip
      fi;
      pusher[i] = i;
      i++
    }
  od;
#endif
  i = 0;
  atomic {
    d_step {
      do
      :: i == VARS -> break
      :: else -> holds[i] = 1; i++
      od;
      i = 0
    };
    run Pusher(0); run Pusher(1); run Worker()
#if WORKERS > 1
    ; run Worker()
#endif
#ifdef TRACED
    ; run Pusher(2)
#endif
  };
  /* Blocks for ever, and Spin says so, unless all threads come to their ends. */
  _nr_pr == 1;
  d_step {
    i = 0;
    do
    :: i == OPS -> break
    :: else -> assert(refs[i] == 0); i++
    od;
    i = 0;
    do
    :: i == VARS -> break
    :: else ->
      assert(tail[i] == (serial_root[i] -> IDLE_MARKED : IDLE));
      assert(holds[i] == 1 && root[i] == serial_root[i]);
      i++
    od;
    assert(queued == 0 && gone == OPS)
  }
}
