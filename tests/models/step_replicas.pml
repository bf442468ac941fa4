/* The step as a transaction, with replicas: every rank's state has a copy on the next rank's machine, which executes
 * the same updates on the same gradients. Extends the model of a step without replicas by machines that are lost with
 * all their memory, by the copy that takes their place, and by gradients on their way to the buddy.
 *
 *   tests/models/check                 (needs spin and gcc; what it runs, and the planted mistakes)
 *
 * RANKS machines with a rank each run STEPS steps. KILLS times a process is killed, LOSSES times a machine is lost, at
 * any point. Of a killed process its machine's memory survives: the rank's own state and the replica of the rank before
 * it. Of a lost machine nothing survives, and a spare machine takes its place.
 *
 * A rank sends its reduced gradient to its buddy, and is PREPARED when it has the gradient of the replica that it keeps:
 * so everybody's word says that every buddy has its gradient. A buddy updates the replica before it ends its own step.
 * A recovery first gives a rank without memory the replica, then decides from what the
 * ranks' memories say, when all of the old generation are dead or stopped. Where a rank has neither memory nor replica,
 * all go back to the checkpoint (step 0 here).
 *
 * BUG=1..8 plant mistakes that the assertions must find.
 */
#ifndef RANKS
#define RANKS 3
#endif
#ifndef STEPS
#define STEPS 2
#endif
#ifndef KILLS
#define KILLS 1
#endif
#ifndef LOSSES
#define LOSSES 1
#endif
#ifndef BUG
#define BUG 0
#endif

#define BUDDY(r) ((r + 1) % RANKS)            /* on whose machine the replica of r lies */
#define BEFORE(r) ((r + RANKS - 1) % RANKS)   /* whose replica lies on the machine of r */

#if BUG == 1                                   /* is PREPARED before it has the gradient of what it keeps */
#define MAY_PREPARE(r) true
#else
#define MAY_PREPARE(r) (has_replica[BEFORE(r)] && replica_gradient[BEFORE(r)] != 0)
#endif
#if BUG == 2                                   /* the buddy takes a gradient of an older generation */
#define TAKES(r) true
#else
#define TAKES(r) (flight[r] == generation)
#endif
#if BUG == 3                                   /* the buddy's update is done again after a kill */
#define REPLICA_BEHIND(r) (replica_gradient[r] != 0)
#define REPLICA_UPDATED(r) skip
#else
#define REPLICA_BEHIND(r) (replica_step[r] == step[BUDDY(r)])
#define REPLICA_UPDATED(r) replica_gradient[r] = 0
#endif
#if BUG == 4                                   /* a committed step may be known to the lost machine alone */
#define ALL_PREPARED false
#else
#define ALL_PREPARED all_prepared
#endif
#if BUG == 5                                   /* a replica that was lost is not made again */
#define REPLICA_MISSING(r) false
#else
#define REPLICA_MISSING(r) (!has_replica[r])
#endif
#if BUG == 6                                   /* takes over the replica before its buddy has stopped */
#define BUDDY_STOPPED(r) true
#else
#define BUDDY_STOPPED(r) (!alive[BUDDY(r)] || stopped[BUDDY(r)])
#endif
#if BUG == 7                                   /* a step is discarded and its gradient stays with the buddy */
#define FORGET_GRADIENT(r) skip
#else
#define FORGET_GRADIENT(r) replica_gradient[r] = 0
#endif
#if BUG == 8                                   /* the buddy ends its own step before it has updated the replica */
#define REPLICA_FIRST 0
#else
#define REPLICA_FIRST 1
#endif

mtype = { COMPUTING, PREPARED, COMMITTED };

/* Memory of the machine: of the rank itself. */
bit   has_memory[RANKS];
byte  step[RANKS];
mtype phase[RANKS] = COMPUTING;
byte  prepared_in[RANKS];        /* the generation whose gradient it holds */
/* Memory of the buddy's machine. */
bit   has_replica[RANKS];
byte  replica_step[RANKS];
byte  replica_gradient[RANKS];   /* of step replica_step + 1: the generation that computed it; 0: none */

/* Lost with the process. */
bit   alive[RANKS];
bit   stopped[RANKS];            /* has left its generation, touches nothing until it is resumed */
byte  voted[RANKS];              /* in this generation, on the step after this one: 1 + it */
byte  flight[RANKS];             /* a gradient on its way to the buddy: its generation; 0: none */
byte  flight_step[RANKS];

byte  generation = 1;
bit   abort;
byte  kills_left = KILLS;
byte  losses_left = LOSSES;

/* What really happened, for the assertions. */
byte  updates[RANKS];            /* of the rank's memory */
byte  replica_updates[RANKS];
byte  decided;                   /* the newest step that some rank committed */

#if RANKS == 2
#define ALL_VOTED(s) (voted[0] > s && voted[1] > s)
#define QUIET ((!alive[0] || stopped[0]) && (!alive[1] || stopped[1]))
#define ALL_DONE (alive[0] && alive[1] && step[0] == STEPS && step[1] == STEPS && done[0] && done[1])
#else
#define ALL_VOTED(s) (voted[0] > s && voted[1] > s && voted[2] > s)
#define QUIET ((!alive[0] || stopped[0]) && (!alive[1] || stopped[1]) && (!alive[2] || stopped[2]))
#define ALL_DONE (done[0] && done[1] && done[2])
#endif
bit   done[RANKS];

inline lose_machine(m) {
  losses_left--;
  alive[m] = 0; done[m] = 0; has_memory[m] = 0; has_replica[BEFORE(m)] = 0; flight[BEFORE(m)] = 0;
  step[m] = 0; phase[m] = COMPUTING; updates[m] = 0;
  replica_step[BEFORE(m)] = 0; replica_gradient[BEFORE(m)] = 0; replica_updates[BEFORE(m)] = 0;
  abort = 1
}

inline die_here(r) {
  if
  :: atomic { kills_left > 0 -> kills_left--; alive[r] = 0; done[r] = 0; flight[BEFORE(r)] = 0; abort = 1; goto dead }
  :: atomic { losses_left > 0 -> lose_machine(r); goto dead }
  :: skip
  fi
}

inline leave_if_aborted(r) {
  if
  :: abort -> stopped[r] = 1; goto parked
  :: else
  fi
}

/* The replica that lies on the machine of r, by the step that r has committed. */
inline update_replica(r) {
  atomic {
    if
    :: has_replica[BEFORE(r)] && REPLICA_BEHIND(BEFORE(r)) ->
         assert(replica_gradient[BEFORE(r)] != 0);       /* who commits has everybody's word that it is there */
         replica_updates[BEFORE(r)]++; replica_step[BEFORE(r)]++; REPLICA_UPDATED(BEFORE(r))
    :: else
    fi
  }
}

inline finish_step(r) {
  if :: REPLICA_FIRST -> update_replica(r); die_here(r) :: else fi;
  atomic { updates[r]++; step[r]++; phase[r] = COMPUTING };   /* the undo log makes this one store */
  die_here(r);
  if :: !REPLICA_FIRST -> update_replica(r); die_here(r) :: else fi
}

proctype trainer(byte r) {
resume:
  do
  :: phase[r] == COMMITTED -> finish_step(r)            /* so the recovery decided */
  :: else ->
       /* The replica is made again where it was lost with the buddy's machine: also after the last step. */
       if
       :: REPLICA_MISSING(r) ->
            if
            :: atomic { alive[BUDDY(r)] && !stopped[BUDDY(r)] && !abort ->
                 has_replica[r] = 1; replica_step[r] = step[r]; replica_gradient[r] = 0;
                 replica_updates[r] = updates[r] }
            :: abort -> leave_if_aborted(r)
            fi;
            die_here(r)
       :: else
       fi;
       if :: step[r] >= STEPS -> break :: else fi;
       die_here(r); leave_if_aborted(r);
       atomic { flight[r] = generation; flight_step[r] = step[r] };
       if
       :: MAY_PREPARE(r) -> skip
       :: abort -> leave_if_aborted(r)
       fi;
       die_here(r); leave_if_aborted(r);
       atomic { phase[r] = PREPARED; prepared_in[r] = generation };
       die_here(r); leave_if_aborted(r);
       voted[r] = step[r] + 1;
       die_here(r);
       if
       :: ALL_VOTED(step[r]) -> skip
       :: abort -> leave_if_aborted(r)
       fi;
       die_here(r);
       atomic {
         phase[r] = COMMITTED;
         if :: decided < step[r] + 1 -> decided = step[r] + 1 :: else fi
       };
       die_here(r);
       finish_step(r)
  od;
  done[r] = 1;
end_idle:
  (abort); done[r] = 0; stopped[r] = 1;
parked:
end_parked:
  do
  :: atomic { alive[r] && !abort && !stopped[r] -> goto resume }
  :: atomic { alive[r] && abort && !stopped[r] -> stopped[r] = 1 }
  :: atomic { !alive[r] -> goto dead }
  :: atomic { alive[r] && stopped[r] && losses_left > 0 -> lose_machine(r); goto dead }
  od;
dead:
  skip
}

/* Gradients arrive at any later time; those to a process that died are lost. A buddy that has not ended the step before
 * reads on when it has. */
#define ARRIVES(r) (flight[r] != 0 && alive[BUDDY(r)] && has_replica[r] && TAKES(r) && replica_step[r] == flight_step[r])
#define OUTDATED(r) (flight[r] != 0 && flight[r] != generation)
active proctype network() {
end_network:
  do
  :: atomic { ARRIVES(0) -> replica_gradient[0] = flight[0]; flight[0] = 0 }
  :: atomic { ARRIVES(1) -> replica_gradient[1] = flight[1]; flight[1] = 0 }
  :: atomic { OUTDATED(0) -> flight[0] = 0 }
  :: atomic { OUTDATED(1) -> flight[1] = 0 }
#if RANKS > 2
  :: atomic { ARRIVES(2) -> replica_gradient[2] = flight[2]; flight[2] = 0 }
  :: atomic { OUTDATED(2) -> flight[2] = 0 }
#endif
  od
}

/* Also the machines of the dead may be lost while the recovery is at work. */
inline lose_any() {
  if
  :: atomic { losses_left > 0 && !alive[0] && has_memory[0] -> lose_machine(0) }
  :: atomic { losses_left > 0 && !alive[1] && has_memory[1] -> lose_machine(1) }
#if RANKS > 2
  :: atomic { losses_left > 0 && !alive[2] && has_memory[2] -> lose_machine(2) }
#endif
  :: skip
  fi
}

active proctype controller() {
  byte r; byte top; bit commit; bit load; bit all_prepared; byte low; byte common;
  atomic {
    r = 0;
    do :: r < RANKS -> has_memory[r] = 1; has_replica[r] = 1; alive[r] = 1; run trainer(r); r++ :: else -> break od
  };
recover:
  do
  :: abort ->
#if BUG != 6
       (QUIET);
#endif
       /* Whoever has no memory takes the replica. */
       load = 0; r = 0;
       do
       :: r < RANKS ->
            if
            :: atomic { !has_memory[r] && has_replica[r] && BUDDY_STOPPED(r) -> updates[r] = replica_updates[r] };
                 if
                 :: atomic { has_replica[r] ->                      /* else it is lost in the midst of the copy */
                      has_memory[r] = 1; step[r] = replica_step[r]; prepared_in[r] = replica_gradient[r];
                      phase[r] = (replica_gradient[r] != 0 -> PREPARED : COMPUTING) }
                 :: else
                 fi
            :: else
            fi;
            lose_any();
            r++
       :: else -> break
       od;
       atomic {
         (QUIET);
         r = 0;
         do :: r < RANKS -> if :: !has_memory[r] && !has_replica[r] -> load = 1
                            :: !has_memory[r] && has_replica[r] -> goto recover      /* lost meanwhile */
                            :: else fi; r++ :: else -> break od;
         generation++;
         if
         :: load ->
              assert(losses_left + 2 <= LOSSES);        /* no less than two machines are to blame */
              decided = 0; r = 0;
              do :: r < RANKS ->
                      has_memory[r] = 1; has_replica[r] = 1; step[r] = 0; updates[r] = 0; phase[r] = COMPUTING;
                      replica_step[r] = 0; replica_updates[r] = 0; replica_gradient[r] = 0; voted[r] = 0; r++
                 :: else -> break od
         :: else ->
              top = 0; low = STEPS; commit = 0; all_prepared = 1; r = 0;
              do :: r < RANKS ->
                      if :: step[r] > top -> top = step[r] :: else fi;
                      if :: step[r] < low -> low = step[r] :: else fi;
                      r++ :: else -> break od;
              r = 0;
              do :: r < RANKS ->
                      if :: step[r] == low && phase[r] == COMMITTED -> commit = 1 :: else fi;
                      if :: step[r] == low && phase[r] == COMPUTING -> all_prepared = 0 :: else fi;
                      r++ :: else -> break od;
              assert(top <= low + 1);
              common = 0; r = 0;
              do :: r < RANKS -> if :: step[r] == low && prepared_in[r] > common -> common = prepared_in[r] :: else fi; r++
                 :: else -> break od;
              if :: top > low || ALL_PREPARED -> commit = 1 :: else fi;
              /* No step that anybody committed is computed again. */
              assert(decided <= low || commit);
              if :: commit && decided < low + 1 -> decided = low + 1 :: else fi;
              r = 0;
              do :: r < RANKS ->
                      voted[r] = 0;
                      /* Gradients of one generation make a step. */
                      assert(!commit || step[r] != low || prepared_in[r] == common);
                      if
                      :: step[r] == low && commit ->
                           assert(phase[r] != COMPUTING);     /* its gradient is there */
                           phase[r] = COMMITTED
                      :: else ->
                           assert(step[r] == low || phase[r] == COMPUTING || phase[r] == PREPARED);
                           phase[r] = COMPUTING
                      fi;
                      if
                      :: has_replica[r] && !(commit && replica_step[r] == low) -> FORGET_GRADIENT(r)
                      :: else
                      fi;
                      r++ :: else -> break od
         fi;
         abort = 0;
         r = 0;
         do :: r < RANKS ->
                 stopped[r] = 0;
                 if :: !alive[r] -> alive[r] = 1; run trainer(r) :: else fi;
                 r++ :: else -> break od
       }
  :: !abort && ALL_DONE -> break
  od;
  /* Nothing lost, nothing twice, in the replicas neither. */
  atomic {
    r = 0;
    do :: r < RANKS ->
            assert(updates[r] == STEPS);
            assert(!has_replica[r] || replica_updates[r] == STEPS);
            r++ :: else -> break od
  }
}
