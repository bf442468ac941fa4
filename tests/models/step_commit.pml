/* The step as a transaction (train/transaction), checked by exhaustive search: see README.md and ./check.
 *
 * RANKS trainers run STEPS steps. KILLED of them are killed up to KILLS times each between any two statements, also
 * inside a recovery, and one LOSSES times with its memory. Nobody coordinates: the controller begins a generation when all live, or
 * for no reason at all (SPURIOUS times: a controller that was itself killed and knows nothing). Every rank decides for
 * itself, from positions that were gathered in its generation.
 *
 * A rank here is its memory and its processes, one after the other. What the others know of it are messages; they
 * carry generation and step, and what was sent stays delivered, whatever becomes of its sender.
 * BUG=n plants a mistake that the search must find.
 */
#ifndef RANKS
#define RANKS 2
#endif
#ifndef STEPS
#define STEPS 2
#endif
#ifndef KILLS
#define KILLS 1
#endif
#ifndef KILLED
#define KILLED RANKS            /* ranks 0 to KILLED - 1 are killed; all ranks are alike               */
#endif
#ifndef LOSSES
#define LOSSES 0                /* of rank 1                                                           */
#endif
#ifndef SPURIOUS
#define SPURIOUS 0
#endif
#ifndef CHUNKS
#define CHUNKS 1
#endif
#ifndef SLOTS
#define SLOTS 1                 /* undo slots, each with a thread of its own (1 or 2) */
#endif
#ifndef PUBLISHES
#define PUBLISHES 0             /* 1: owners' parameters go to all after a step (ZeRO-1, ZeRO-2) */
#endif
#ifndef BUG
#define BUG 0
#endif

#define NONE 0                  /* a slot that holds nothing      */
#define TORN 14                 /* bytes that are half written    */

#if RANKS == 2
#define FOR_ALL(P) (P(0) && P(1))
#else
#define FOR_ALL(P) (P(0) && P(1) && P(2))
#endif

mtype = { COMPUTING, PREPARED, COMMITTED };

/* --- messages ---------------------------------------------------------------------------------------- */
byte  position_in[RANKS];       /* the generation of the position that rank i gave last                    */
byte  position_step[RANKS];
mtype position_phase[RANKS];
bit   position_loaded[RANKS];
byte  position_record[RANKS];   /* the newest record it has                                                */
byte  vote_in[RANKS];
byte  voted[RANKS];             /* in that generation: bit k, for step k + 1                               */
byte  publish_in[RANKS];
byte  published[RANKS];         /* likewise: bit k, the parameters of step k                               */

/* --- who runs ---------------------------------------------------------------------------------------- */
byte  generation;               /* that was begun last                                                     */
byte  aborted;                  /* it and all before are lost                                              */
bit   dead[RANKS];
bit   unnoticed;                /* a process died or began, and the controller does not know it yet        */
byte  finished[RANKS];          /* the generation in which it has nothing left to do                       */
byte  saved;                    /* the step of the newest checkpoint                                       */
bit   over;

/* --- ghosts: what really happened --------------------------------------------------------------------- */
byte  decided_in[STEPS + 1];    /* the generation whose vote was recorded for step + 1                     */
bit   memory_was_lost;
byte  right;                    /* ranks whose every chunk was updated exactly once a step                 */

#define OVER(g) (aborted >= g || generation > g)

inline die_here() {             /* a kill may strike between any two statements                            */
  if
  :: kills > 0 -> kills--; goto killed
#if LOSSES
  :: losses > 0 -> losses--; goto lost
#endif
  :: true
  fi
}
inline may_leave() {            /* either may come first                                                   */
  if :: OVER(mine) -> goto leaves :: true fi
}

#if BUG == 1                    /* accepts messages of earlier generations */
#define SAME(g) (g > 0)
#else
#define SAME(g) (g == mine)
#endif
#define HAS_POSITION(i) (SAME(position_in[i]))
#define HAS_VOTE(i) (SAME(vote_in[i]) && (voted[i] >> step) % 2 == 1)
#if BUG == 2                    /* takes a result that not everybody contributed to */
#define ALL_VOTES (HAS_VOTE(r))
#else
#define ALL_VOTES FOR_ALL(HAS_VOTE)
#endif
#define HAS_PUBLISHED(i) (SAME(publish_in[i]) && (published[i] >> step) % 2 == 1)

inline contribute(in, what) {
  if :: in != mine -> in = mine; what = 0 :: else fi;
  what = what | (1 << step)
}

/* --- recovery ----------------------------------------------------------------------------------------- */
/* decide_recovery(): equal on all ranks, for it looks at gathered positions only. */
inline decide() {
  low = position_step[0]; i = 1;
  do :: i < RANKS -> if :: position_step[i] < low -> low = position_step[i] :: else fi; i++ :: else -> break od;
  load = 0; broken = 0; finish = 0; news = 0; i = 0;
  do
  :: i < RANKS ->
       if :: !position_loaded[i] -> load = 1 :: else fi;
       if :: position_step[i] > low + 1 -> broken = 1 :: else fi;
       if :: position_step[i] > low || position_phase[i] == COMMITTED -> finish = 1; news = position_record[i] :: else fi;
       if :: position_step[i] > low && position_phase[i] == COMMITTED -> broken = 1 :: else fi;
       i++
  :: else -> break
  od;
  i = 0;
  do                            /* who is behind a decided step had prepared it: the vote was complete     */
  :: i < RANKS -> if :: finish && position_step[i] == low && position_phase[i] == COMPUTING -> broken = 1 :: else fi; i++
  :: else -> break
  od;
  assert(load || !broken || memory_was_lost);   /* only an interrupted load mixes memory of different times */
#if BUG == 3                    /* does not see that memory of different times is mixed */
  broken = 0;
#endif
  if :: broken -> load = 1 :: else fi;
#if BUG == 4                    /* forgets that a rank may already be a step further */
  finish = 0; i = 0;
  do :: i < RANKS -> if :: position_phase[i] == COMMITTED -> finish = 1 :: else fi; i++ :: else -> break od;
#endif
  broken = 0; i = 0
}

inline forget_marks() {
  i = 0; do :: i < CHUNKS -> mark[i] = 0; i++ :: else -> break od;
  i = 0; do :: i < SLOTS -> slot_of[i] = NONE; i++ :: else -> break od;
  i = 0
}
inline set_all(v) { i = 0; do :: i < CHUNKS -> value[i] = v; i++ :: else -> break od; i = 0 }

inline load_checkpoint() {
  loaded = 0;                                                       die_here();
#if BUG != 5                    /* 5: marks of steps that will be done again stay */
  d_step { forget_marks() };                                        die_here();
#endif
  d_step { set_all(TORN) };                                         die_here();
  d_step {
    step = saved; phase = COMPUTING; record[step % 2] = step; set_all(step);
    do :: i < RANKS -> seen[i] = step; i++ :: else -> break od;
    i = 0; loaded = 1
  }
}

inline commit(k) {              /* two records: the last finished step's stays whole meanwhile */
#if BUG == 6                    /* one record: a kill inside its writing loses the last step's */
  d_step { record[0] = TORN; record[1] = TORN };                    die_here();
  d_step { record[0] = k; record[1] = k };                          die_here();
#else
  record[(k) % 2] = TORN;                                           die_here();
  record[(k) % 2] = k;                                              die_here();
#endif
  phase = COMMITTED
}

/* --- the optimizer phase: no collective inside ---------------------------------------------------------- */
/* A slot says in one word for which step and chunk it holds the old bytes. */
#if BUG == 7                    /* does not say for which step */
#define HELD_STEP(h) (h > 0 -> step + 1 : 0)
#else
#define HELD_STEP(h) ((h) / CHUNKS)
#endif
#define HELD_CHUNK(h) ((h) % CHUNKS)
inline restore(s) {
  if
  :: HELD_STEP(slot_of[s]) == step + 1 && mark[HELD_CHUNK(slot_of[s])] != step + 1 ->
#if BUG == 8                    /* does not put a half-written chunk back */
       skip
#else
       value[HELD_CHUNK(slot_of[s])] = TORN;                        die_here();
       value[HELD_CHUNK(slot_of[s])] = slot_value[s]
#endif
  :: else
  fi
}

/* One move of the thread of slot s: at[s] says where it is, doing[s] its chunk. */
inline move(s) {
  if
  :: d_step { at[s] == 0 ->
       do :: next < CHUNKS && mark[next] == step + 1 -> next++ :: else -> break od;
       if :: next < CHUNKS -> doing[s] = next; next++; at[s] = 1 :: else -> at[s] = 9 fi }
#if BUG == 9                    /* overwrites a slot that still names an unfinished chunk */
  :: d_step { at[s] == 1 -> at[s] = 2 }
#else
  :: d_step { at[s] == 1 -> slot_of[s] = NONE; at[s] = 2 }
#endif
  :: d_step { at[s] == 2 -> slot_value[s] = TORN; at[s] = 3 }
  :: d_step { at[s] == 3 -> slot_value[s] = value[doing[s]]; at[s] = 4 }
  :: d_step { at[s] == 4 -> slot_of[s] = (step + 1) * CHUNKS + doing[s]; at[s] = 5 }
#if BUG == 10                   /* marks a chunk done before it is written */
  :: d_step { at[s] == 5 -> mark[doing[s]] = step + 1; at[s] = 6 }
#else
  :: d_step { at[s] == 5 -> at[s] = 6 }
#endif
  :: d_step { at[s] == 6 -> value[doing[s]] = TORN; at[s] = 7 }
  :: d_step { at[s] == 7 -> value[doing[s]] = (slot_value[s] == TORN -> TORN : slot_value[s] + 1); at[s] = 8 }
  :: d_step { at[s] == 8 -> mark[doing[s]] = step + 1; at[s] = 0; doing[s] = 0 }
#if BUG == 11                   /* the memory went on while the old process could still write */
  :: d_step { ghost_writes > 0 -> value[0] = ghost_writes - 1; ghost_writes = 0 }
#endif
  fi
}
#if SLOTS == 2
#define ALL_MOVED (at[0] == 9 && at[1] == 9)
#else
#define ALL_MOVED (at[0] == 9)
#endif

inline optimizer_phase() {
  assert(record[(step + 1) % 2] == step + 1);
  restore(0);                                                       die_here();
#if SLOTS == 2
  restore(1);                                                       die_here();
#endif
  do
  :: at[0] != 9 -> move(0);                                         die_here()
#if SLOTS == 2
  :: at[1] != 9 -> move(1);                                         die_here()
#endif
  :: ALL_MOVED -> break
  od;
  next = 0;
  d_step {
    at[0] = 0; at[1] = 0; i = 0;
    do :: i < CHUNKS -> assert(value[i] == step + 1); i++ :: else -> break od;
    i = 0;
    step++; phase = COMPUTING; seen[r] = step       /* one store: the step stands */
  }
}

/* --- a rank: memory that survives, and its processes one after the other ---------------------------------- */
proctype rank(byte r) {
  /* survives */
  byte step; mtype phase = COMPUTING; bit loaded = 1; byte record[2]; byte value[CHUNKS];
  byte mark[CHUNKS];            /* the step that the chunk was updated for              */
  byte slot_of[SLOTS]; byte slot_value[SLOTS];
  byte seen[RANKS];             /* the step whose parameters of owner i are here        */
  byte kills = (r < KILLED -> KILLS : 0); byte losses = (r == 1 -> LOSSES : 0);
#if BUG == 11
  byte ghost_writes;
#endif
  /* dies with the process */
  byte mine; byte low; byte news; byte i; byte next; byte at[2]; byte doing[2]; bit load; bit broken; bit finish;

waits:
end_waits:
  if
  :: d_step { !OVER(generation) && generation > mine -> mine = generation }
  :: kills > 0 -> kills--; goto killed
  :: over -> goto ends
  fi;
  die_here();
  /* --- recovery: gather, decide, act */
#if BUG == 12                   /* decides from its own position */
  if :: phase == PREPARED -> phase = COMPUTING :: else fi;
#endif
  d_step {
    position_in[r] = mine; position_step[r] = step; position_phase[r] = phase; position_loaded[r] = loaded;
    position_record[r] = record[(step + (phase == COMMITTED -> 1 : 0)) % 2]
  };
  die_here();
  if :: d_step { FOR_ALL(HAS_POSITION) -> decide() } :: OVER(mine) -> goto leaves fi;
  die_here();
  if
  :: load -> load_checkpoint()
  :: !load && finish && step == low ->
       if :: phase != COMMITTED -> assert(news == low + 1); commit(news); die_here() :: else fi;
       optimizer_phase()
  :: else -> phase = COMPUTING
  fi;
  low = 0; news = 0; load = 0; finish = 0;
  die_here();
  /* --- steps */
  do
  :: true ->
#if PUBLISHES
#if BUG == 13                   /* publishes after a step only, not when a generation begins */
       if
       :: position_step[r] == step
       :: else ->
#else
       if
       :: true ->
#endif
            d_step { contribute(publish_in[r], published[r]) };
            die_here();
            if :: FOR_ALL(HAS_PUBLISHED) -> skip :: OVER(mine) -> goto leaves fi;
            d_step { i = 0; do :: i < RANKS -> seen[i] = step; i++ :: else -> break od; i = 0 };
#if LOSSES
            /* everybody is here: a checkpoint of this step may be complete from now on */
            if :: d_step { r == 0 && saved < step -> saved = step } :: true fi;
#endif
            die_here()
       fi;
#endif
       if :: step >= STEPS -> break :: else fi;
       /* forward, backward, reduction of gradients */
       assert(record[step % 2] == step);
#if PUBLISHES
       d_step { i = 0; do :: i < RANKS -> assert(seen[i] == step); i++ :: else -> break od; i = 0 };
#endif
       phase = PREPARED;
       die_here(); may_leave();
       d_step { contribute(vote_in[r], voted[r]) };
       die_here();
       if :: ALL_VOTES -> skip :: OVER(mine) -> goto leaves fi;
       die_here();
       commit(step + 1);
       d_step {
         /* a step is decided in one generation, unless it was loaded away */
         assert(decided_in[step] == 0 || decided_in[step] == mine || memory_was_lost);
         decided_in[step] = mine
       };
       die_here();
       optimizer_phase();
       die_here(); may_leave()
  od;
  finished[r] = mine;
end_finished:
  if
  :: OVER(mine) -> goto leaves
  :: atomic { kills > 0 && !over -> kills--; goto killed }
  :: over -> goto ends
  fi;
leaves:
  goto waits;

lost:
  i = 0;
  d_step { memory_was_lost = 1; loaded = 0; step = 0; phase = COMPUTING; set_all(TORN); forget_marks() };
killed:
  i = 0;
#if BUG == 11
  if :: at[0] == 7 && doing[0] == 0 -> ghost_writes = slot_value[0] + 2 :: else fi;
#endif
  d_step {
    dead[r] = 1; finished[r] = 0; unnoticed = 1;
    low = 0; news = 0; i = 0; next = 0; at[0] = 0; at[1] = 0; doing[0] = 0; doing[1] = 0; load = 0; finish = 0
  };
  /* the node has seen the exit: the memory goes on */
  d_step {
    dead[r] = 0; unnoticed = 1;
#if BUG == 14                   /* a new process joins the generation of the one before it */
    mine = 0
#else
    mine = generation           /* a plan names the processes it is for: none that came later */
#endif
  };
  goto waits;

ends:
  i = 0;
  d_step {
    i = 0; do :: i < CHUNKS -> assert(value[i] == STEPS); i++ :: else -> break od
  }
}

#define LIVES(i) (!dead[i])
#define DONE(i) (finished[i] == generation)

/* --- the controller: deaths and processes are told in any order with everything else, and late ------------- */
active proctype controller() {
  byte spurious = SPURIOUS;
  atomic {
    position_phase[0] = COMPUTING; generation = 1;
    run rank(0); run rank(1);
#if RANKS == 3
    run rank(2)
#endif
  };
  do
  :: d_step { unnoticed -> unnoticed = 0; aborted = generation }
  :: d_step { aborted == generation && FOR_ALL(LIVES) -> generation++ }
  :: d_step { spurious > 0 -> spurious--; generation++ }
  :: d_step { !unnoticed && aborted < generation && FOR_ALL(DONE) -> over = 1 }; break
  od
}
