//! What the prefix tree keeps of sequences: pages and states on their way from requests into the tree, and out of it.
//!
//! The tree counts as one owner of each of its pages and slots; everything here keeps its books and those of the pool together. It also
//! says at which lengths a pass keeps recurrent states. Next: `prefix.rs` (what is worth keeping), `snapshots.rs` (the disk).

use arrayvec::ArrayVec;
use coldpress_model::{KEPT_STATES_MAX, KeptState, KvPool, PAGE_POSITIONS, Sequence};

use super::answer::Answer;
use super::prefix::{PageChange, PrefixTree, Removed, common};
use super::snapshots::Snapshots;

/// Puts what lies in `pages` into the tree, which becomes an owner of the pages that are new to it.
pub(super) fn remember(prefix: &mut PrefixTree, pool: &mut KvPool, tokens: &[u32], pages: &[u32]) {
    prefix.insert(tokens, pages, |change| match change {
        PageChange::Kept(page) => pool.retain(page),
        PageChange::GivenUp(page) => pool.release_page(page),
    });
}

/// Puts the state of a beginning of `tokens`, whose pages it holds, into the tree, which becomes its owner in the caller's place.
pub(super) fn remember_state(prefix: &mut PrefixTree, pool: &mut KvPool, tokens: &[u32], kept: KeptState) {
    if let Some(given_up) = prefix.attach(&tokens[..kept.length], kept.slot) {
        pool.release_state(given_up);
    }
}

/// Puts all of a sequence of `tokens` into the tree and gives it back to the pool.
pub(super) fn remember_sequence(
    prefix: &mut PrefixTree,
    pool: &mut KvPool,
    tokens: &[u32],
    mut sequence: Sequence,
) {
    remember(prefix, pool, &tokens[..sequence.len()], sequence.pages());
    for kept in pool.take_kept_states(&mut sequence) {
        remember_state(prefix, pool, tokens, kept);
    }
    if let Some(last) = pool.share_state(&sequence) {
        remember_state(prefix, pool, tokens, last);
    }
    pool.release(sequence);
}

/// What a request has computed stays in the tree, and is written to the disk.
pub(super) fn give_back(
    prefix: &mut PrefixTree,
    snapshots: Option<&mut Snapshots>,
    pool: &mut KvPool,
    tokens: &[u32],
    sequence: Sequence,
) {
    let computed = &tokens[..sequence.len()];
    remember_sequence(prefix, pool, computed, sequence);
    if let Some(snapshots) = snapshots {
        snapshots.keep(computed, prefix, pool);
    }
}

/// Gives the tree's references to what it has removed back.
pub(super) fn release_removed(pool: &mut KvPool, removed: Removed) {
    pool.release_page(removed.page);
    removed.state.into_iter().for_each(|slot| pool.release_state(slot));
}

/// Evicts a page that nobody else has, with its state.
pub(super) fn evict_page(prefix: &mut PrefixTree, pool: &mut KvPool) -> bool {
    let removed = prefix.evict(|page| pool.owners(page) == 1);
    let evicted = removed.is_some();
    removed.into_iter().for_each(|removed| release_removed(pool, removed));
    evicted
}

/// Evicts a state that nobody else has.
pub(super) fn evict_state(prefix: &mut PrefixTree, pool: &mut KvPool) -> bool {
    let slot = prefix.evict_state(|slot| pool.state_owners(slot) == 1);
    slot.into_iter().for_each(|slot| pool.release_state(slot));
    slot.is_some()
}

/// Tokens in the whole pages that the beginnings of two requests have in common, the last token of `answer` left out.
pub(super) fn common_pages(older: &Answer<'_>, answer: &Answer<'_>) -> usize {
    common(&older.tokens, &answer.tokens).min(answer.tokens.len() - 1) / PAGE_POSITIONS * PAGE_POSITIONS
}

/// Prompts that are computed keep their state where `answer`, which waits for it, goes on from it.
pub(super) fn ask_for_common_states(running: &mut [Answer<'_>], answer: &Answer<'_>) {
    for older in running.iter_mut().filter(|older| !older.is_decoding()) {
        let length = common_pages(older, answer);
        if length > answer.sequence.len() {
            older.want_state(length);
        }
    }
}

/// Lets the next pass keep the states that requests want at lengths which their `rows` reach, as far as slots are free or the tree has
/// others to give.
pub(super) fn ask_for_states(
    running: &mut [Answer<'_>],
    rows: &[usize],
    prefix: &mut PrefixTree,
    pool: &mut KvPool,
) {
    if !prefix.has_states() {
        return;
    }
    for (answer, &rows) in running.iter_mut().zip(rows) {
        let end = answer.sequence.len() + rows;
        let wanted: ArrayVec<usize, KEPT_STATES_MAX> =
            answer.next_states().take_while(|&length| length <= end).take(KEPT_STATES_MAX).collect();
        for length in wanted {
            if pool.state_slots_free() == 0 && !evict_state(prefix, pool) {
                return;
            }
            // Without it more is computed again.
            let _ = pool.keep_state_at(&mut answer.sequence, length);
        }
    }
}
