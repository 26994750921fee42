//! The prefix tree: pages of keys and values that later requests may begin with.
//!
//! A node is one page of the KV pool: up to [`PAGE_POSITIONS`] consecutive tokens after those of its parent. Requests with a
//! common beginning share the pages of the common part; the tree owns one reference to each of its pages, running requests
//! own others, and a page goes back to the pool with its last reference. Only whole pages have children. Eviction takes the
//! leaf that is worth least: pages are equally large and equally long to compute, so worth is how often a page was used,
//! halved for every [`HALF_LIFE`] uses of the tree since. Pages of running requests give no memory back and stay. Knows
//! nothing of the pool beyond page numbers: the caller takes and gives references as the results say.
//! Models with recurrent layers can go on only where a state was kept: nodes own states too, at most one each, and a match ends
//! at the last state that it passes. What a state is worth: its uses, and how many tokens it saves over the state before it.
//! Next: `snapshots.rs`.

use coldpress_model::PAGE_POSITIONS;

/// Uses of the tree after which an earlier use counts half.
const HALF_LIFE: f64 = 64.0;

type NodeIndex = usize;

struct Node {
    /// At most [`PAGE_POSITIONS`].
    tokens: Vec<u32>,
    page: u32,
    parent: Option<NodeIndex>,
    children: Vec<NodeIndex>,
    state: Option<NodeState>,
    /// Uses, as counted at `used_at`.
    uses: f64,
    used_at: u64,
}

/// The recurrent state after some tokens of a node.
#[derive(Clone, Copy)]
struct NodeState {
    /// Tokens of the node that it has seen, at least one.
    count: usize,
    slot: u32,
    uses: f64,
    used_at: u64,
}

impl Node {
    fn removed(&self) -> Removed {
        Removed { page: self.page, state: self.state.map(|state| state.slot) }
    }
}

/// See the module header.
#[derive(Default)]
pub(crate) struct PrefixTree {
    nodes: Vec<Option<Node>>,
    free: Vec<NodeIndex>,
    roots: Vec<NodeIndex>,
    /// Counts uses of the tree.
    now: u64,
    pages: usize,
    with_states: bool,
}

/// A beginning that the tree holds.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Match {
    /// The pages, in order. All but the last are full.
    pub pages: Vec<u32>,
    /// Tokens in them that agree. Where the last page agrees in part, its beginning has to be copied.
    pub tokens: usize,
    /// The state after these tokens, in a tree with states.
    pub state: Option<u32>,
    /// Tokens that agree in pages, at least `tokens`: more where no state was kept after them.
    pub agreed: usize,
}

/// What an eviction takes out; the references are the caller's to give back.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Removed {
    pub page: u32,
    pub state: Option<u32>,
}

/// What an insertion does to a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PageChange {
    /// The tree keeps it from now on and needs a reference of its own.
    Kept(u32),
    /// The tree has a longer one in its place: its reference is the caller's to give back.
    GivenUp(u32),
}

/// Leading tokens that both have.
pub(super) fn common(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

impl PrefixTree {
    /// A tree for models that can only go on where a state was kept.
    pub fn with_states(with_states: bool) -> Self {
        Self { with_states, ..Self::default() }
    }

    /// Whether states are kept in it.
    pub fn has_states(&self) -> bool {
        self.with_states
    }

    /// Pages that the tree holds a reference to.
    pub fn pages(&self) -> usize {
        self.pages
    }

    /// States that the tree holds a reference to.
    pub fn states(&self) -> usize {
        let count = || self.nodes.iter().flatten().filter(|node| node.state.is_some()).count();
        if self.with_states { count() } else { 0 }
    }

    /// The longest beginning of `tokens` in the tree, which counts as a use of it. In a tree with states it is cut back to the last
    /// state.
    pub fn find(&mut self, tokens: &[u32]) -> Match {
        self.now += 1;
        let (path, agreed) = self.path(tokens);
        path.iter().for_each(|&node| self.use_now(node));
        let mut found = Match { tokens: agreed, agreed, ..Match::default() };
        if self.with_states {
            let state = self.last_state(&path, agreed);
            found.tokens = state.map_or(0, |(length, _)| length);
            found.state = state.map(|(_, node)| self.use_state(node));
        }
        let pages = found.tokens.div_ceil(PAGE_POSITIONS);
        found.pages = path[..pages].iter().map(|&node| self.node(node).page).collect();
        found
    }

    /// Tokens of the longest beginning that [`PrefixTree::find`] would give; changes nothing.
    pub fn peek(&self, tokens: &[u32]) -> usize {
        let (path, agreed) = self.path(tokens);
        match self.with_states {
            true => self.last_state(&path, agreed).map_or(0, |(length, _)| length),
            false => agreed,
        }
    }

    /// Tokens of the longest beginning in pages, with or without a state after it; changes nothing.
    pub fn peek_pages(&self, tokens: &[u32]) -> usize {
        self.path(tokens).1
    }

    /// The pages of a beginning, as far as they agree.
    pub fn pages_of(&self, tokens: &[u32]) -> Vec<u32> {
        self.path(tokens).0.into_iter().map(|node| self.node(node).page).collect()
    }

    /// The nodes of the longest beginning of `tokens`, and the tokens in it.
    fn path(&self, tokens: &[u32]) -> (Vec<NodeIndex>, usize) {
        let (mut path, mut agreed) = (Vec::new(), 0);
        let mut children = &self.roots;
        loop {
            let rest = &tokens[agreed..];
            let best = children.iter().map(|&child| (common(&self.node(child).tokens, rest), child)).max();
            let Some((agree, child)) = best.filter(|&(agree, _)| agree > 0) else { return (path, agreed) };
            path.push(child);
            agreed += agree;
            if agree < PAGE_POSITIONS {
                return (path, agreed);
            }
            children = &self.node(child).children;
        }
    }

    /// The last state on a path of which `agreed` tokens count: its length and its node.
    fn last_state(&self, path: &[NodeIndex], agreed: usize) -> Option<(usize, NodeIndex)> {
        path.iter().enumerate().rev().find_map(|(depth, &node)| {
            let length = depth * PAGE_POSITIONS + self.node(node).state?.count;
            (length <= agreed).then_some((length, node))
        })
    }

    /// The states along `tokens`, with their lengths.
    pub fn states_of(&self, tokens: &[u32]) -> Vec<(usize, u32)> {
        let (path, agreed) = self.path(tokens);
        let states = path.iter().enumerate().filter_map(|(depth, &node)| {
            let state = self.node(node).state?;
            let length = depth * PAGE_POSITIONS + state.count;
            (length <= agreed).then_some((length, state.slot))
        });
        states.collect()
    }

    /// The tree becomes an owner of `slot`, the state after all of `tokens`, whose pages it holds. Returns the slot whose reference is
    /// the caller's to give back: another state that this one replaces, or this one where the tree holds less or has it already.
    pub fn attach(&mut self, tokens: &[u32], slot: u32) -> Option<u32> {
        let (path, agreed) = self.path(tokens);
        let (Some(&node), true) = (path.last(), agreed == tokens.len()) else { return Some(slot) };
        let count = tokens.len() - (path.len() - 1) * PAGE_POSITIONS;
        let now = self.now;
        let place = &mut self.node_mut(node).state;
        if place.is_some_and(|state| state.count == count) {
            return Some(slot);
        }
        let new = NodeState { count, slot, uses: 1.0, used_at: now };
        place.replace(new).map(|state| state.slot)
    }

    /// Takes out the state that is worth least among those that `can_go`; its reference is the caller's to give back.
    pub fn evict_state(&mut self, mut can_go: impl FnMut(u32) -> bool) -> Option<u32> {
        let states = self.nodes.iter().enumerate().filter_map(|(index, node)| {
            let state = node.as_ref()?.state.filter(|state| can_go(state.slot))?;
            let age = (self.now - state.used_at) as f64;
            Some((
                index,
                state.uses * (-age / HALF_LIFE).exp2() * self.saved_tokens(index, state.count) as f64,
            ))
        });
        let (index, _) = states.min_by(|(_, a), (_, b)| a.total_cmp(b))?;
        self.node_mut(index).state.take().map(|state| state.slot)
    }

    /// Tokens from the state before that of a node, or the beginning, to it.
    fn saved_tokens(&self, index: NodeIndex, count: usize) -> usize {
        let (mut saved, mut parent) = (count, self.node(index).parent);
        while let Some(index) = parent {
            let node = self.node(index);
            if let Some(state) = node.state {
                return saved + PAGE_POSITIONS - state.count;
            }
            saved += PAGE_POSITIONS;
            parent = node.parent;
        }
        saved
    }

    /// Counts a use of a node's state; returns its slot.
    fn use_state(&mut self, index: NodeIndex) -> u32 {
        let now = self.now;
        let state = self.node_mut(index).state.as_mut().expect("a state was found there");
        let age = (now - state.used_at) as f64;
        state.uses = state.uses * (-age / HALF_LIFE).exp2() + 1.0;
        state.used_at = now;
        state.slot
    }

    /// Remembers `tokens`, which lie in `pages`, and tells which pages it keeps and gives up.
    pub fn insert(&mut self, tokens: &[u32], pages: &[u32], mut change: impl FnMut(PageChange)) {
        self.now += 1;
        let mut parent = None;
        for (tokens, &page) in tokens.chunks(PAGE_POSITIONS).zip(pages) {
            let siblings = parent.map_or(&self.roots, |parent| &self.node(parent).children);
            // A page that says all of this and perhaps more, or one that this page goes on from.
            let known = siblings.iter().copied().find(|&node| {
                let theirs = &self.node(node).tokens;
                let agree = common(theirs, tokens);
                agree == tokens.len() || agree == theirs.len()
            });
            let node = match known {
                Some(node) => node,
                None => {
                    change(PageChange::Kept(page));
                    self.add(parent, tokens, page)
                }
            };
            if self.node(node).tokens.len() < tokens.len() {
                change(PageChange::Kept(page));
                let longer = self.node_mut(node);
                change(PageChange::GivenUp(std::mem::replace(&mut longer.page, page)));
                longer.tokens = tokens.to_vec();
            }
            self.use_now(node);
            parent = Some(node);
        }
    }

    fn add(&mut self, parent: Option<NodeIndex>, tokens: &[u32], page: u32) -> NodeIndex {
        let (uses, used_at) = (0.0, self.now);
        let (tokens, children) = (tokens.to_vec(), Vec::new());
        let node = Node { tokens, page, parent, children, state: None, uses, used_at };
        let index = match self.free.pop() {
            Some(index) => {
                self.nodes[index] = Some(node);
                index
            }
            None => {
                self.nodes.push(Some(node));
                self.nodes.len() - 1
            }
        };
        match parent {
            Some(parent) => self.node_mut(parent).children.push(index),
            None => self.roots.push(index),
        }
        self.pages += 1;
        index
    }

    /// Forgets the page that is worth least among those that `can_go`, with its state: the tree's references are the caller's to give
    /// back. `None` if there is none.
    pub fn evict(&mut self, mut can_go: impl FnMut(u32) -> bool) -> Option<Removed> {
        let leaves = self.nodes.iter().enumerate().filter_map(|(index, node)| Some((index, node.as_ref()?)));
        let leaves = leaves.filter(|(_, node)| node.children.is_empty() && can_go(node.page));
        let worth = |node: &Node| node.uses * (-((self.now - node.used_at) as f64) / HALF_LIFE).exp2();
        let least = leaves.min_by(|(_, a), (_, b)| {
            worth(a)
                .total_cmp(&worth(b))
                .then(a.used_at.cmp(&b.used_at))
                .then(b.tokens.len().cmp(&a.tokens.len()))
        });
        let (index, _) = least?;
        Some(self.remove(index))
    }

    fn remove(&mut self, index: NodeIndex) -> Removed {
        let node = self.nodes[index].take().expect("a node of the tree");
        match node.parent {
            Some(parent) => self.node_mut(parent).children.retain(|&child| child != index),
            None => self.roots.retain(|&root| root != index),
        }
        self.free.push(index);
        self.pages -= 1;
        node.removed()
    }

    /// Forgets everything; the references to what is returned are the caller's to give back.
    pub fn clear(&mut self) -> Vec<Removed> {
        let all = self.nodes.iter().flatten().map(Node::removed).collect();
        *self = Self { now: self.now, ..Self::with_states(self.with_states) };
        all
    }

    fn use_now(&mut self, index: NodeIndex) {
        let now = self.now;
        let node = self.node_mut(index);
        let age = (now - node.used_at) as f64;
        node.uses = node.uses * (-age / HALF_LIFE).exp2() + 1.0;
        node.used_at = now;
    }

    fn node(&self, index: NodeIndex) -> &Node {
        self.nodes[index].as_ref().expect("indices in the tree are of nodes in the tree")
    }

    fn node_mut(&mut self, index: NodeIndex) -> &mut Node {
        self.nodes[index].as_mut().expect("indices in the tree are of nodes in the tree")
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::collections::BTreeMap;

    use super::*;

    /// References that the tree holds, by page.
    #[derive(Default)]
    struct Pool(RefCell<BTreeMap<u32, i32>>);

    impl Pool {
        fn insert(&self, tree: &mut PrefixTree, tokens: &[u32], pages: &[u32]) {
            tree.insert(tokens, pages, |change| {
                let (page, by) = match change {
                    PageChange::Kept(page) => (page, 1),
                    PageChange::GivenUp(page) => (page, -1),
                };
                *self.0.borrow_mut().entry(page).or_default() += by;
            });
            assert_eq!(self.held().len(), tree.pages());
        }

        fn held(&self) -> Vec<u32> {
            let references = self.0.borrow();
            assert!(references.values().all(|count| (0..=1).contains(count)), "{references:?}");
            references.iter().filter(|&(_, &count)| count == 1).map(|(&page, _)| page).collect()
        }

        fn evict(&self, tree: &mut PrefixTree, can_go: impl FnMut(u32) -> bool) -> Option<u32> {
            let page = tree.evict(can_go)?.page;
            *self.0.borrow_mut().get_mut(&page).expect("held") -= 1;
            Some(page)
        }
    }

    fn tokens(from: u32, count: usize) -> Vec<u32> {
        (from..from + count as u32).collect()
    }

    fn pages(pages: &[u32], tokens: usize) -> Match {
        Match { pages: pages.to_vec(), tokens, state: None, agreed: tokens }
    }

    #[test]
    fn a_match_ends_at_the_last_state_that_it_passes() {
        let (pool, mut tree) = (Pool::default(), PrefixTree::with_states(true));
        let told = tokens(0, 200);
        pool.insert(&mut tree, &told, &[7, 8, 9, 10]);
        let none = Match { agreed: 200, ..Match::default() };
        assert_eq!((tree.find(&told), tree.peek(&told), tree.peek_pages(&told)), (none, 0, 200));
        assert_eq!(tree.attach(&told[..64], 1), None);
        assert_eq!(tree.attach(&told[..150], 2), None);
        let found =
            |pages: &[u32], tokens, state, agreed| Match { pages: pages.to_vec(), tokens, state, agreed };
        assert_eq!(tree.find(&told), found(&[7, 8, 9], 150, Some(2), 200));
        assert_eq!(tree.find(&told[..149]), found(&[7], 64, Some(1), 149));
        assert_eq!(tree.find(&told[..63]), found(&[], 0, None, 63));
        assert_eq!(tree.peek(&told[..150]), 150);
        assert_eq!(tree.states_of(&told), [(64, 1), (150, 2)]);
        // One state per page: a later one takes the place of an earlier one, the same one is given back.
        assert_eq!(tree.attach(&told[..160], 3), Some(2));
        assert_eq!(tree.attach(&told[..160], 4), Some(4));
        // A longer page keeps the state of the shorter one.
        pool.insert(&mut tree, &tokens(0, 230), &[7, 8, 9, 11]);
        assert_eq!(tree.attach(&tokens(0, 230), 5), None);
        pool.insert(&mut tree, &tokens(0, 250), &[7, 8, 9, 12]);
        assert_eq!(tree.peek(&tokens(0, 250)), 230);
        // Pages that the tree does not hold have no state.
        assert_eq!(tree.attach(&tokens(500, 64), 6), Some(6));
        assert_eq!(tree.attach(&tokens(0, 251), 6), Some(6));
    }

    #[test]
    fn states_that_save_least_go_first_and_pages_take_theirs_with_them() {
        let (pool, mut tree) = (Pool::default(), PrefixTree::with_states(true));
        let told = tokens(0, 640);
        pool.insert(&mut tree, &told, &(0..10).collect::<Vec<_>>());
        for (slot, length) in [(1, 320), (2, 384), (3, 640)] {
            assert_eq!(tree.attach(&told[..length], slot), None);
        }
        // 320, 64 and 256 tokens.
        assert_eq!(tree.evict_state(|_| true), Some(2));
        // A state that is used stays longer than one that would save as much.
        for _ in 0..3 {
            tree.find(&told[..400]);
        }
        assert_eq!(tree.evict_state(|slot| slot != 3), Some(1));
        assert_eq!(tree.evict(|_| true), Some(Removed { page: 9, state: Some(3) }));
        assert_eq!(tree.evict_state(|_| true), None);
        assert_eq!(tree.attach(&told[..64], 4), None);
        let gone = tree.clear();
        assert_eq!(gone.iter().filter_map(|removed| removed.state).collect::<Vec<_>>(), [4]);
        assert_eq!(tree.attach(&told[..64], 4), Some(4));
    }

    #[test]
    fn a_beginning_is_found_to_the_token() {
        let (pool, mut tree) = (Pool::default(), PrefixTree::default());
        let told = tokens(0, 150);
        pool.insert(&mut tree, &told, &[7, 8, 9]);
        assert_eq!(tree.find(&told), pages(&[7, 8, 9], 150));
        assert_eq!(tree.find(&tokens(0, 100)), pages(&[7, 8], 100));
        assert_eq!(tree.peek(&tokens(0, 100)), 100);
        let mut other = told.clone();
        other[130] = 9999;
        assert_eq!(tree.find(&other), pages(&[7, 8, 9], 130));
        assert_eq!(tree.find(&tokens(500, 10)), Match::default());
        assert_eq!(tree.find(&[]), Match::default());
    }

    #[test]
    fn what_is_common_is_held_once_and_branches_apart() {
        let (pool, mut tree) = (Pool::default(), PrefixTree::default());
        let (mut left, mut right) = (tokens(0, 64), tokens(0, 64));
        left.extend(tokens(1000, 64));
        right.extend(tokens(2000, 64));
        pool.insert(&mut tree, &left, &[1, 2]);
        pool.insert(&mut tree, &right, &[3, 4]);
        assert_eq!(pool.held(), [1, 2, 4]);
        assert_eq!(tree.find(&right), pages(&[1, 4], 128));
    }

    #[test]
    fn a_longer_page_takes_the_place_of_its_beginning() {
        let (pool, mut tree) = (Pool::default(), PrefixTree::default());
        pool.insert(&mut tree, &tokens(0, 70), &[1, 2]);
        pool.insert(&mut tree, &tokens(0, 90), &[1, 3]);
        assert_eq!(pool.held(), [1, 3]);
        pool.insert(&mut tree, &tokens(0, 80), &[1, 4]);
        assert_eq!(pool.held(), [1, 3]);
        assert_eq!(tree.find(&tokens(0, 200)).tokens, 90);
    }

    #[test]
    fn what_is_used_least_goes_first_and_leaves_before_what_they_follow() {
        let (pool, mut tree) = (Pool::default(), PrefixTree::default());
        pool.insert(&mut tree, &tokens(0, 128), &[1, 2]);
        pool.insert(&mut tree, &tokens(5000, 64), &[3]);
        tree.find(&tokens(0, 128));
        assert_eq!(pool.evict(&mut tree, |_| true), Some(3));
        assert_eq!(pool.evict(&mut tree, |page| page != 2), None);
        assert_eq!(pool.evict(&mut tree, |_| true), Some(2));
        assert_eq!(pool.evict(&mut tree, |_| true), Some(1));
        assert_eq!(pool.evict(&mut tree, |_| true), None);
        assert_eq!(tree.pages(), 0);
    }

    #[test]
    fn a_use_long_ago_counts_less_than_a_recent_one() {
        let (pool, mut tree) = (Pool::default(), PrefixTree::default());
        pool.insert(&mut tree, &tokens(0, 64), &[1]);
        for _ in 0..3 {
            tree.find(&tokens(0, 64));
        }
        for _ in 0..500 {
            tree.find(&[77]);
        }
        pool.insert(&mut tree, &tokens(5000, 64), &[2]);
        assert_eq!(pool.evict(&mut tree, |_| true), Some(1));
    }

    /// Random insertions, searches and evictions against a list of everything that was told.
    #[test]
    fn it_finds_what_a_list_of_all_sequences_finds() {
        let mut random = 12345_u64;
        let mut next = |bound: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (random >> 33) % bound
        };
        let (pool, mut tree) = (Pool::default(), PrefixTree::default());
        let mut told: Vec<Vec<u32>> = Vec::new();
        let mut page = 0;
        for _ in 0..400 {
            let mut sequence: Vec<u32> = match told.len() {
                0 => Vec::new(),
                known => {
                    let from = &told[next(known as u64) as usize];
                    from[..next(from.len() as u64 + 1) as usize].to_vec()
                }
            };
            sequence.extend((0..next(150)).map(|_| next(3) as u32));
            let longest = told.iter().map(|other| common(other, &sequence)).max().unwrap_or(0);
            assert_eq!(tree.peek(&sequence), longest);
            let found = tree.find(&sequence);
            assert_eq!((found.tokens, found.pages.len()), (longest, longest.div_ceil(PAGE_POSITIONS)));
            let mut pages = found.pages[..found.tokens / PAGE_POSITIONS].to_vec();
            while pages.len() < sequence.len().div_ceil(PAGE_POSITIONS) {
                page += 1;
                pages.push(page);
            }
            pool.insert(&mut tree, &sequence, &pages);
            told.push(sequence);
        }
        let all = pool.held().len();
        let gone = std::iter::from_fn(|| pool.evict(&mut tree, |_| true)).count();
        assert_eq!((all, pool.held().len()), (gone, 0));
    }
}
