//! The keeper: holds a runtime to its memory while it computes and while it rests.
//!
//! A thread looks at the machine, the control groups and the process some fifty times a second, sooner when a control group
//! fills ([`Controller`]), and says how much memory expert slots may take. While the runtime computes, its store follows by itself. While it rests, its heavy
//! parts are *parked* here, so that the keeper can make them smaller, and after an idle time give them back: the experts, or
//! all but tokenizer and program. [`Runtime::wake`](crate::Runtime) takes the parts back and loads what is missing. Whoever
//! computes takes a lock once per call, never per token. [`RuntimeHandle`] is what other threads get.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use coldpress_experts::{ExpertStatistics, ExpertStore, Hotlist, StoreControl, StoreFigures};
use coldpress_memory::{
    Bytes, Controller, Ledger, LedgerSnapshot, LedgerState, MemoryUsage, MemoryWatch, PressureLog,
    PressureSource, Purpose,
};
use coldpress_model::{DenseWeights, Scratch};
use coldpress_workers::start_thread;

use crate::error::EngineError;
use crate::shared_kv::SharedKv;

/// Time between two looks.
const LOOK: Duration = Duration::from_millis(20);
/// Time between two glances at the control groups, whether it is worth looking sooner.
const GLANCE: Duration = Duration::from_millis(4);
/// The thread reads small files.
const STACK_BYTES: usize = 128 << 10;

/// What is given back after a time without requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum IdleRelease {
    /// The routed experts; the next request reads those it needs.
    #[default]
    Experts,
    /// Dense weights, KV cache and scratch too; the next request loads them first and computes its whole prompt.
    All,
}

impl IdleRelease {
    /// All choices with their names on the command line.
    pub const ALL: [(&'static str, Self); 2] = [("experts", Self::Experts), ("all", Self::All)];

    /// Name on the command line and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Experts => "experts",
            Self::All => "all",
        }
    }
}

/// A lock that a panic elsewhere does not take away: what it guards is replaced as a whole.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The heavy parts of a runtime that rests.
#[derive(Default)]
pub(crate) struct Parked {
    pub experts: Option<ExpertStore>,
    pub scratch: Option<Scratch>,
    pub weights: Option<DenseWeights>,
    /// What was used so far, of a store that was given back.
    pub hotlist: Option<Hotlist>,
    /// What that store had counted.
    pub counted: ExpertStatistics,
    /// Absent until the first conversation.
    pub kv: Option<SharedKv>,
    released: Option<IdleRelease>,
    /// Since when the runtime rests; `None` while it computes.
    since: Option<Instant>,
}

struct Shared {
    ledger: Ledger,
    memory: MemoryWatch,
    parked: Mutex<Parked>,
    control: Mutex<Option<Arc<StoreControl>>>,
    /// The budget that the caller wants.
    asked: AtomicU64,
    slots: SlotPlan,
    idle: Option<(Duration, IdleRelease)>,
    log: Mutex<PressureLog>,
    /// Looks so far.
    looks: AtomicU64,
    stop: Mutex<bool>,
    stopped: Condvar,
}

/// What the plan says about the memory of slots.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SlotPlan {
    /// The fewest slots that work.
    pub min: Bytes,
    /// The slots of the plan.
    pub planned: Bytes,
    /// Everything else of the plan, also what nobody has yet, such as the KV cache of the first conversation.
    pub others: Bytes,
    /// The budget of the plan.
    pub budget: Bytes,
    /// Whether the caller fixed the number of slots, so that a larger budget changes nothing.
    pub fixed: bool,
}

impl SlotPlan {
    /// The most that slots may take under `budget`.
    fn most(&self, budget: Bytes) -> Bytes {
        let room = budget.saturating_sub(self.others).max(self.min);
        if self.fixed || budget <= self.budget { room.min(self.planned) } else { room }
    }
}

/// See the module header.
pub(crate) struct Keeper {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Keeper {
    /// Starts to look after a runtime with this ledger. Where the system gives no thread, nothing is looked after.
    pub(crate) fn start(
        ledger: &Ledger,
        memory: &MemoryWatch,
        slots: SlotPlan,
        idle: Option<(Duration, IdleRelease)>,
    ) -> Self {
        let shared = Arc::new(Shared {
            ledger: ledger.clone(),
            memory: memory.clone(),
            parked: Mutex::default(),
            control: Mutex::default(),
            asked: AtomicU64::new(ledger.budget().0),
            slots,
            idle,
            log: Mutex::default(),
            looks: AtomicU64::new(0),
            stop: Mutex::default(),
            stopped: Condvar::new(),
        });
        let theirs = Arc::clone(&shared);
        let builder = std::thread::Builder::new().name("coldpress-keeper".to_owned()).stack_size(STACK_BYTES);
        // Files are opened here and not at the thread's first turn, which may come when tokens are made already.
        let source = PressureSource::new();
        Self { thread: start_thread(builder, move || theirs.look_after(source)).ok(), shared }
    }

    /// Steers `store` from now on.
    pub(crate) fn steer(&self, store: Option<&ExpertStore>) {
        *lock(&self.shared.control) = store.map(ExpertStore::control);
    }

    /// Waits until the keeper has seen what is held now, so that the target of the slots is one for it. Where no keeper could be
    /// started nothing changes the target.
    pub(crate) fn wait_for_a_look(&self) {
        let before = self.shared.looks.load(Ordering::Relaxed);
        let began = Instant::now();
        // The look that runs at the moment may have asked the ledger before.
        while self.thread.is_some()
            && self.shared.looks.load(Ordering::Relaxed) < before + 2
            && began.elapsed() < 10 * LOOK
        {
            std::thread::sleep(GLANCE);
        }
    }

    /// The runtime rests: its parts stay here.
    pub(crate) fn park(
        &self,
        experts: Option<ExpertStore>,
        scratch: Option<Scratch>,
        weights: DenseWeights,
        kv: Option<SharedKv>,
    ) {
        let mut parked = lock(&self.shared.parked);
        (parked.experts, parked.scratch, parked.weights, parked.kv) = (experts, scratch, Some(weights), kv);
        parked.since = Some(Instant::now());
    }

    /// The runtime rests with nothing but what is not heavy: it has to load the rest again.
    pub(crate) fn park_nothing(&self) {
        let mut parked = lock(&self.shared.parked);
        parked.released = Some(IdleRelease::All);
        parked.since = Some(Instant::now());
    }

    /// The runtime computes: whatever of its parts is here, unless it computes already.
    pub(crate) fn unpark(&self) -> Option<Parked> {
        let mut parked = lock(&self.shared.parked);
        parked.since.take()?;
        Some(std::mem::take(&mut *parked))
    }

    /// Makes the KV cache of a runtime that rests, unless it is there. Where everything was given back it comes with the rest.
    pub(crate) fn ready_parked_kv(
        &self,
        make: impl FnOnce() -> Result<SharedKv, EngineError>,
    ) -> Result<(), EngineError> {
        let mut parked = lock(&self.shared.parked);
        if parked.kv.is_none() && parked.released != Some(IdleRelease::All) {
            parked.kv = Some(make()?);
        }
        Ok(())
    }

    /// Looks at the parked store, if the runtime rests and has one.
    pub(crate) fn parked_store<R>(&self, look: impl FnOnce(&ExpertStore) -> R) -> Option<R> {
        lock(&self.shared.parked).experts.as_ref().map(look)
    }

    /// What the store had counted that was given back.
    pub(crate) fn counted(&self) -> ExpertStatistics {
        lock(&self.shared.parked).counted
    }

    pub(crate) fn handle(&self) -> RuntimeHandle {
        RuntimeHandle { shared: Arc::clone(&self.shared) }
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        *lock(&self.shared.stop) = true;
        self.shared.stopped.notify_all();
        if let Some(thread) = self.thread.take() {
            // It has nothing that could panic.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn look_after(&self, mut source: PressureSource) {
        let mut controller = Controller::new(source.counter_error());
        let started = Instant::now();
        let mut stop = lock(&self.stop);
        let mut looked: Option<Instant> = None;
        while !*stop {
            drop(stop);
            if looked.is_none_or(|then| then.elapsed() >= LOOK) || source.has_risen() {
                looked = Some(Instant::now());
                self.look(&mut source, &mut controller, started.elapsed());
            }
            stop = lock(&self.stop);
            if !*stop {
                let waited = self.stopped.wait_timeout(stop, GLANCE);
                stop = waited.unwrap_or_else(PoisonError::into_inner).0;
            }
        }
    }

    fn look(&self, source: &mut PressureSource, controller: &mut Controller, now: Duration) {
        let asked = Bytes(self.asked.load(Ordering::Relaxed));
        let state = LedgerState {
            budget_asked: asked,
            used: self.ledger.used(),
            shrinkable_used: self.ledger.used_for(Purpose::ExpertSlots),
            shrinkable_min: self.slots.min,
        };
        let decision = controller.step(now, &source.read(), &state);
        if let Some(control) = &*lock(&self.control) {
            control.set_target(decision.target.min(self.slots.most(asked)));
        }
        if let Some(event) = decision.event {
            lock(&self.log).push(event);
        }
        // A lock that is taken means that the runtime begins or ends to compute: the next look will do.
        if let Ok(mut parked) = self.parked.try_lock()
            && parked.since.is_some()
        {
            self.look_at_parked(&mut parked);
        }
        self.looks.fetch_add(1, Ordering::Relaxed);
        if asked != self.ledger.budget() {
            // A lower budget has to wait until slots are given back.
            let _ = self.ledger.set_budget(asked);
        }
    }

    fn look_at_parked(&self, parked: &mut Parked) {
        let idle_for = parked.since.map_or(Duration::ZERO, |since| since.elapsed());
        let due = self.idle.filter(|(after, _)| idle_for >= *after).map(|(_, release)| release);
        match due {
            Some(release) if parked.released.is_none() => {
                parked.released = Some(release);
                if release == IdleRelease::All {
                    parked.release_all();
                } else if let Some(store) = &mut parked.experts {
                    // A broken reader is reported by the next request.
                    let _ = store.release_slots();
                }
            }
            Some(_) => {}
            None => {
                if let Some(store) = &mut parked.experts {
                    let _ = store.follow_target();
                }
            }
        }
    }
}

impl Parked {
    fn release_all(&mut self) {
        if let Some(mut store) = self.experts.take() {
            // Its figures say that it holds nothing; a broken reader is reported by the next request.
            let _ = store.release_slots();
            self.hotlist = Some(store.hotlist(&Hotlist::default()));
            self.counted = store.statistics();
        }
        self.scratch = None;
        self.weights = None;
        self.kv = None;
    }
}

/// Watches and steers a runtime from any thread, also while it computes.
#[derive(Clone)]
pub struct RuntimeHandle {
    shared: Arc<Shared>,
}

/// The state of a runtime at one moment, as other threads see it.
#[derive(Clone, Debug, serde::Serialize)]
pub struct LiveStatus {
    /// Whether a request is being computed.
    pub computing: bool,
    /// What was given back because nothing was asked for a while.
    pub released: Option<IdleRelease>,
    /// The budget that the caller wants; the ledger follows as soon as it can.
    pub budget_asked: Bytes,
    /// The ledger: budget, reserved bytes and peak by purpose.
    pub ledger: LedgerSnapshot,
    /// The expert store at its latest forward pass; absent for dense models.
    pub experts: Option<StoreFigures>,
    /// Memory that expert slots may take at present.
    pub slots_target: Option<Bytes>,
    /// Memory of the process and its control group.
    pub memory: MemoryUsage,
    /// When and why slots were given back or taken again.
    pub pressure: PressureLog,
}

impl RuntimeHandle {
    /// The state now.
    pub fn status(&self) -> LiveStatus {
        let shared = &*self.shared;
        let control = lock(&shared.control).clone();
        let (computing, released) = {
            let parked = lock(&shared.parked);
            (parked.since.is_none(), parked.released)
        };
        LiveStatus {
            computing,
            released,
            budget_asked: Bytes(shared.asked.load(Ordering::Relaxed)),
            ledger: shared.ledger.snapshot(),
            experts: control.as_ref().map(|control| control.figures()),
            slots_target: control.as_ref().map(|control| control.target()),
            memory: shared.memory.read().unwrap_or_default(),
            pressure: lock(&shared.log).clone(),
        }
    }

    /// Asks for another budget. More holds at once, and slots grow into it slowly; less holds as soon as enough slots are
    /// given back, which takes some hundredths of a second.
    ///
    /// # Errors
    /// What is not expert slots and the fewest slots that work do not fit `budget`.
    pub fn set_budget(&self, budget: Bytes) -> Result<(), EngineError> {
        let shared = &*self.shared;
        let slots = shared.ledger.used_for(Purpose::ExpertSlots);
        let others = shared.ledger.used().saturating_sub(slots);
        let smallest = Bytes(others.0.saturating_add(shared.slots.min.0));
        if budget < smallest {
            return Err(EngineError::BadOption(format!(
                "a budget of {budget} is too small for what is loaded: {others} beside the experts and {} for the \
                 fewest slots that work are {smallest}; load again with a smaller context for less",
                shared.slots.min
            )));
        }
        shared.asked.store(budget.0, Ordering::Relaxed);
        Ok(())
    }
}
