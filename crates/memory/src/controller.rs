//! What expert slots may hold while memory of others comes and goes.
//!
//! Owns: [`Controller`], a pure state machine. It is told the time, a [`PressureReading`] and the state of the ledger, and answers
//! with a target. Refuses: clocks, files, threads and slots; the caller brings the one and moves the other.
//!
//! Down at once, up slowly. *Headroom* is what a control group or the machine has left after all that the ledger has promised,
//! also what was not touched yet. Each has a floor; what is missing below it is taken from the slots at once, and while others take
//! memory quickly the floor is raised to a quarter of a second of that. Slots come back after a calm time, in
//! steps, and only while twice the floor stays free: the distance between one floor and two is what noise must cross to turn the
//! direction, and every turn within a minute doubles the calm time.
//!
//! A run whose group has its budget and 64 MiB never shrinks: page tables and the program's text live in these 64 MiB, the
//! floor of a group takes 24. Read `trend.rs` for rates, `pressure.rs` for what is read.

use std::time::Duration;

use crate::trend::{FallRate, StallShare};
use crate::{Bytes, PressureCause, PressureEvent, PressureLevel, PressureReading, StallScope};

/// What stays free in a control group.
const GROUP_FLOOR: Bytes = Bytes::from_mib(24);
/// Smallest and largest part of the machine that stays free; in between a twentieth.
const MACHINE_FLOOR: [Bytes; 2] = [Bytes::from_mib(64), Bytes::from_mib(512)];
/// How many seconds of what others take are kept free, where that is more than the floor.
const RESERVE_SECONDS: f64 = 0.25;

/// Memory of the process beside the ledger that is no reason yet: allocator, stacks, what a library keeps.
const DRIFT_TOLERANCE: Bytes = Bytes::from_mib(16);
/// Drift counts in these steps, so that each change is one event and not one per look.
const DRIFT_STEP: u64 = 8 << 20;

/// Share of a second waited for memory from which on slots are given back.
const STALL_SHARE: f64 = 0.2;
/// Where only the whole machine's waiting is known, it counts below this share of available memory.
const STALL_AVAILABLE_PERCENT: f64 = 10.0;

/// Parts of the slots given back per second while threads wait or the system warns, and at once when it is critical.
const SHRINK_PERCENT: f64 = 5.0;
const CRITICAL_PERCENT: f64 = 20.0;

/// Part of the user's budget given back per second when calm.
const GROW_PERCENT: f64 = 5.0;
const STEP_TIME: Duration = Duration::from_secs(1);
/// A growth smaller than this is not worth an event unless it is the last.
const GROW_MIN: Bytes = Bytes::from_mib(4);

/// Time without a reason to shrink before anything grows: at first, and at most.
const CALM: [Duration; 2] = [Duration::from_secs(10), Duration::from_secs(300)];
/// A shrink this soon after a growth says that the growth was a mistake.
const REGRET_TIME: Duration = Duration::from_secs(60);
/// After so long without a shrink the calm time is short again.
const FORGET_TIME: Duration = Duration::from_secs(600);
/// A limit counts as lowered just now for this long.
const LOWERED_TIME: Duration = Duration::from_secs(1);

/// What the ledger says at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LedgerState {
    /// The budget as the user wants it, without anything that pressure took off; [`Bytes::MAX`] for none.
    pub budget_asked: Bytes,
    /// Bytes reserved for all purposes.
    pub used: Bytes,
    /// Of them for expert slots.
    pub shrinkable_used: Bytes,
    /// The least that expert slots need to work at all.
    pub shrinkable_min: Bytes,
}

impl LedgerState {
    /// What the user's budget leaves to expert slots, at least their minimum.
    pub fn allowance(&self) -> Bytes {
        let others = self.used.saturating_sub(self.shrinkable_used);
        self.budget_asked.saturating_sub(others).max(self.shrinkable_min)
    }
}

/// What follows from one look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// What expert slots may hold now. Between the minimum and the user's allowance, which may be more than the model has.
    pub target: Bytes,
    /// Set when pressure or its end changed the target. Changes of the user's budget and of the ledger are no events.
    pub event: Option<PressureEvent>,
}

/// Somebody who may run out: the control group or the machine.
#[derive(Clone, Copy, Debug)]
struct Scope {
    /// What is free after all that the ledger promised; negative when promised too much.
    headroom: i128,
    /// What should stay free.
    floor: i128,
    /// What should stay free on top, because others take memory quickly.
    reserve: i128,
}

impl Scope {
    fn deficit(&self) -> i128 {
        self.floor + self.reserve - self.headroom
    }

    fn room_to_grow(&self) -> i128 {
        self.headroom - 2 * self.floor - self.reserve
    }
}

/// Decides what expert slots may hold.
#[derive(Clone, Debug)]
pub struct Controller {
    counter_error: Bytes,
    /// What pressure leaves to the slots; `None` while that is no less than the user allows.
    cap: Option<Bytes>,
    /// What is taken off the allowance because the process holds more than the ledger says.
    drift: Bytes,
    group_fall: FallRate,
    machine_fall: FallRate,
    stall: StallShare,
    level: PressureLevel,
    level_acted: Option<Duration>,
    /// The limit at the last look, [`Bytes::MAX`] for none.
    limit: Option<Bytes>,
    limit_lowered: Option<Duration>,
    calm: Duration,
    last_reason: Duration,
    last_shrink: Option<Duration>,
    last_growth: Option<Duration>,
    /// A growth that no shrink has answered yet.
    unanswered_growth: Option<Duration>,
}

impl Controller {
    /// A controller that has seen nothing yet. `counter_error` is how far the figures of the own process may be off
    /// ([`PressureSource::counter_error`](crate::PressureSource::counter_error)).
    pub fn new(counter_error: Bytes) -> Self {
        Self {
            counter_error,
            cap: None,
            drift: Bytes::ZERO,
            group_fall: FallRate::default(),
            machine_fall: FallRate::default(),
            stall: StallShare::default(),
            level: PressureLevel::Normal,
            level_acted: None,
            limit: None,
            limit_lowered: None,
            calm: CALM[0],
            last_reason: Duration::ZERO,
            last_shrink: None,
            last_growth: None,
            unanswered_growth: None,
        }
    }

    /// Takes in what the machine and the ledger say at `now` (time since the start) and decides. To be called 20 to 250 times a
    /// second: what others take between two looks has to fit the floor.
    pub fn step(&mut self, now: Duration, reading: &PressureReading, ledger: &LedgerState) -> Decision {
        let before = self.target(ledger);
        let scopes = self.scopes(now, reading, ledger);
        let mut cap: Option<(Bytes, PressureCause)> = None;
        let mut lower_to = |to: Bytes, cause| {
            if cap.is_none_or(|(lowest, _)| to < lowest) {
                cap = Some((to, cause));
            }
        };
        if let Some((to, cause)) = self.for_headroom(now, &scopes, ledger) {
            lower_to(to, cause);
        }
        let held = before.min(ledger.shrinkable_used);
        if let Some(percent) = self.for_level(now, reading.level) {
            lower_to(held.saturating_sub(held.percent(percent)), PressureCause::SystemWarning);
        }
        if self.is_stalled(now, reading) {
            lower_to(held.saturating_sub(held.percent(SHRINK_PERCENT)), PressureCause::Stalled);
        }
        if self.drift_changes(now, reading, ledger) {
            lower_to(self.top(ledger), PressureCause::Drift);
        }
        if let Some((to, cause)) = cap {
            self.last_reason = now;
            self.cap = Some(self.cap.map_or(to, |cap| cap.min(to)).min(before));
            let after = self.target(ledger);
            if after < before {
                self.note_shrink(now);
            }
            return decision(now, cause, before, after);
        }
        self.grow(now, &scopes, reading, ledger);
        decision(now, PressureCause::Calm, before, self.target(ledger))
    }

    /// What the user's budget leaves to slots after drift.
    fn top(&self, ledger: &LedgerState) -> Bytes {
        ledger.allowance().saturating_sub(self.drift).max(ledger.shrinkable_min)
    }

    fn target(&self, ledger: &LedgerState) -> Bytes {
        let top = self.top(ledger);
        self.cap.map_or(top, |cap| cap.min(top)).max(ledger.shrinkable_min)
    }

    /// The control group, if it has a limit, and the machine.
    fn scopes(
        &mut self,
        now: Duration,
        reading: &PressureReading,
        ledger: &LedgerState,
    ) -> [Option<Scope>; 2] {
        // What the first look finds was not lowered while running.
        let limit = reading.cgroup_limit.unwrap_or(Bytes::MAX);
        if self.limit.replace(limit).is_some_and(|before| limit < before) {
            self.limit_lowered = Some(now);
        }
        let anon = wide(reading.own.anon);
        // Where the system does not tell what this process holds, nothing is known to be outstanding.
        let untouched = match reading.own.anon {
            Bytes::ZERO => 0,
            _ => wide(ledger.used).saturating_sub(anon + wide(self.counter_error)).max(0),
        };
        // What is left plus what is ours falls only by what others take. The floor covers the first part of it: figures read at
        // slightly different instants look like others taking a little all the time.
        let scope = |room: i128, floor: Bytes, fall: &mut FallRate| {
            let soon = (RESERVE_SECONDS * fall.follow(now, room + anon)) as i128;
            let floor = wide(floor);
            Scope { headroom: room - untouched, floor, reserve: (soon - floor).max(0) }
        };
        let group = reading
            .cgroup_room
            .map(|room| scope(wide(room) - wide(reading.cgroup_excess), GROUP_FLOOR, &mut self.group_fall));
        let floor = Bytes(reading.machine_total.0 / 20).clamp(MACHINE_FLOOR[0], MACHINE_FLOOR[1]);
        let machine = scope(wide(reading.machine_available), floor, &mut self.machine_fall);
        [group, Some(machine)]
    }

    /// What is missing below a floor comes off what slots hold. Measured from what they hold, not from the last target: while they
    /// are still on their way down, the same figures give the same answer.
    fn for_headroom(
        &self,
        now: Duration,
        scopes: &[Option<Scope>; 2],
        ledger: &LedgerState,
    ) -> Option<(Bytes, PressureCause)> {
        let [group, machine] = scopes.map(|scope| scope.map_or(0, |scope| scope.deficit()));
        let deficit = group.max(machine);
        if deficit <= 0 {
            return None;
        }
        let lowered = self.limit_lowered.is_some_and(|then| now.saturating_sub(then) <= LOWERED_TIME);
        let cause = match (group >= machine, lowered) {
            (true, true) => PressureCause::LimitLowered,
            (true, false) => PressureCause::GroupFull,
            (false, _) => PressureCause::MachineShort,
        };
        let deficit = Bytes(u64::try_from(deficit).unwrap_or(u64::MAX));
        Some((ledger.shrinkable_used.saturating_sub(deficit), cause))
    }

    /// The part of the slots, in percent, that the system's own word for its state asks for now: a large part when it becomes
    /// critical, a small one each second while it lasts.
    fn for_level(&mut self, now: Duration, level: PressureLevel) -> Option<f64> {
        let before = std::mem::replace(&mut self.level, level);
        if level == PressureLevel::Normal {
            self.level_acted = None;
            return None;
        }
        self.last_reason = now;
        let percent = if level == PressureLevel::Critical && before != PressureLevel::Critical {
            CRITICAL_PERCENT
        } else if self.level_acted.is_none_or(|then| now.saturating_sub(then) >= STEP_TIME) {
            SHRINK_PERCENT
        } else {
            return None;
        };
        self.level_acted = Some(now);
        Some(percent)
    }

    fn is_stalled(&mut self, now: Duration, reading: &PressureReading) -> bool {
        let share = reading.stalled_us.and_then(|us| self.stall.follow(now, us, reading.stalled_scope));
        let counts = match reading.stalled_scope {
            StallScope::Own => true,
            // Others may wait in groups of their own while the machine has plenty.
            StallScope::Machine => {
                reading.machine_available < reading.machine_total.percent(STALL_AVAILABLE_PERCENT)
            }
        };
        counts && share.is_some_and(|share| share > STALL_SHARE)
    }

    /// Follows what the process holds beyond the ledger. It comes off the user's allowance, not off what slots hold: the excess does not
    /// get smaller when slots do. Without a budget there is no promise to keep.
    fn drift_changes(&mut self, now: Duration, reading: &PressureReading, ledger: &LedgerState) -> bool {
        let held = reading.own.anon.saturating_add(reading.own.swapped);
        let explained = ledger.used.saturating_add(DRIFT_TOLERANCE).saturating_add(self.counter_error);
        let excess = match ledger.budget_asked {
            Bytes::MAX => Bytes::ZERO,
            _ => held.saturating_sub(explained),
        };
        let in_steps = Bytes(excess.0.div_ceil(DRIFT_STEP).saturating_mul(DRIFT_STEP));
        if excess > self.drift {
            self.drift = in_steps;
            return true;
        }
        if in_steps.saturating_add(Bytes(DRIFT_STEP)) < self.drift {
            // Comes back as all growth does: the cap holds until it is calm.
            self.cap = Some(self.target(ledger));
            self.drift = in_steps;
            self.last_reason = now;
        }
        false
    }

    fn note_shrink(&mut self, now: Duration) {
        let since = |then: Duration| now.saturating_sub(then);
        if self.last_shrink.is_some_and(|then| since(then) >= FORGET_TIME) {
            self.calm = CALM[0];
        }
        self.last_shrink = Some(now);
        // One growth is regretted once, however many steps down follow it.
        if self.unanswered_growth.take().is_some_and(|then| since(then) <= REGRET_TIME) {
            self.calm = (2 * self.calm).min(CALM[1]);
        }
    }

    fn grow(
        &mut self,
        now: Duration,
        scopes: &[Option<Scope>; 2],
        reading: &PressureReading,
        ledger: &LedgerState,
    ) {
        let Some(cap) = self.cap else { return };
        let waited = |then: Duration, time: Duration| now.saturating_sub(then) >= time;
        if !waited(self.last_reason, self.calm)
            || self.last_growth.is_some_and(|then| !waited(then, STEP_TIME))
        {
            return;
        }
        let top = self.top(ledger);
        if cap >= top {
            self.cap = None;
            return;
        }
        let from = cap.max(ledger.shrinkable_min);
        let step = ledger.budget_asked.min(reading.machine_total).percent(GROW_PERCENT);
        let room = scopes.iter().flatten().map(Scope::room_to_grow).min().unwrap_or(i128::MAX);
        // Slots that may be filled and are not yet will take their part of the room.
        let most = wide(ledger.shrinkable_used).saturating_add(room);
        let most = Bytes(u64::try_from(most.max(0)).unwrap_or(u64::MAX));
        let to = from.saturating_add(step).min(top).min(most);
        if to <= from || (to < top && to.saturating_sub(from) < GROW_MIN.min(step)) {
            return;
        }
        self.cap = (to < top).then_some(to);
        self.last_growth = Some(now);
        self.unanswered_growth = Some(now);
    }
}

fn decision(now: Duration, cause: PressureCause, from: Bytes, to: Bytes) -> Decision {
    let at_ms = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
    let event = (from != to).then_some(PressureEvent { at_ms, cause, from, to });
    Decision { target: to, event }
}

/// Wide enough for sums and differences of any counts.
fn wide(bytes: Bytes) -> i128 {
    i128::from(bytes.0)
}
