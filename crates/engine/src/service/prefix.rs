//! The prefix tree: pages of keys and values that later requests may begin with.
//!
//! A node is one page of the KV pool: up to [`PAGE_POSITIONS`] consecutive tokens after those of its parent. Requests with a
//! common beginning share the pages of the common part; the tree owns one reference to each of its pages, running requests
//! own others, and a page goes back to the pool with its last reference. Only whole pages have children. Eviction takes the
//! leaf that is worth least: pages are equally large and equally long to compute, so worth is how often a page was used,
//! halved for every [`HALF_LIFE`] uses of the tree since. Pages of running requests give no memory back and stay. Knows
//! nothing of the pool beyond page numbers: the caller takes and gives references as the results say. Next: `snapshots.rs`.

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
    /// Uses, as counted at `used_at`.
    uses: f64,
    used_at: u64,
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
}

/// A beginning that the tree holds.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Match {
    /// The pages, in order. All but the last are full.
    pub pages: Vec<u32>,
    /// Tokens in them that agree. Where the last page agrees in part, its beginning has to be copied.
    pub tokens: usize,
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
    /// Pages that the tree holds a reference to.
    pub fn pages(&self) -> usize {
        self.pages
    }

    /// The longest beginning of `tokens` in the tree, which counts as a use of it.
    pub fn find(&mut self, tokens: &[u32]) -> Match {
        self.now += 1;
        let mut found = Match::default();
        let mut children = &self.roots;
        let mut path = Vec::new();
        loop {
            let rest = &tokens[found.tokens..];
            let best = children.iter().map(|&child| (common(&self.node(child).tokens, rest), child)).max();
            let Some((agree, child)) = best.filter(|&(agree, _)| agree > 0) else { break };
            path.push(child);
            found.pages.push(self.node(child).page);
            found.tokens += agree;
            if agree < PAGE_POSITIONS {
                break;
            }
            children = &self.node(child).children;
        }
        for node in path {
            self.use_now(node);
        }
        found
    }

    /// Tokens of the longest beginning in the tree; changes nothing.
    pub fn peek(&self, tokens: &[u32]) -> usize {
        let mut agreed = 0;
        let mut children = &self.roots;
        loop {
            let rest = &tokens[agreed..];
            let best = children.iter().map(|&child| (common(&self.node(child).tokens, rest), child)).max();
            let Some((agree, child)) = best else { return agreed };
            agreed += agree;
            if agree < PAGE_POSITIONS {
                return agreed;
            }
            children = &self.node(child).children;
        }
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
        let node = Node { tokens: tokens.to_vec(), page, parent, children: Vec::new(), uses, used_at };
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

    /// Forgets the page that is worth least among those that `can_go`, and returns it: the tree's reference to it is the
    /// caller's to give back. `None` if there is none.
    pub fn evict(&mut self, mut can_go: impl FnMut(u32) -> bool) -> Option<u32> {
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

    fn remove(&mut self, index: NodeIndex) -> u32 {
        let node = self.nodes[index].take().expect("a node of the tree");
        match node.parent {
            Some(parent) => self.node_mut(parent).children.retain(|&child| child != index),
            None => self.roots.retain(|&root| root != index),
        }
        self.free.push(index);
        self.pages -= 1;
        node.page
    }

    /// Forgets everything; returns the pages, whose references are the caller's to give back.
    pub fn clear(&mut self) -> Vec<u32> {
        let pages = self.nodes.iter().flatten().map(|node| node.page).collect();
        *self = Self { now: self.now, ..Self::default() };
        pages
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
            let page = tree.evict(can_go)?;
            *self.0.borrow_mut().get_mut(&page).expect("held") -= 1;
            Some(page)
        }
    }

    fn tokens(from: u32, count: usize) -> Vec<u32> {
        (from..from + count as u32).collect()
    }

    #[test]
    fn a_beginning_is_found_to_the_token() {
        let (pool, mut tree) = (Pool::default(), PrefixTree::default());
        let told = tokens(0, 150);
        pool.insert(&mut tree, &told, &[7, 8, 9]);
        assert_eq!(tree.find(&told), Match { pages: vec![7, 8, 9], tokens: 150 });
        assert_eq!(tree.find(&tokens(0, 100)), Match { pages: vec![7, 8], tokens: 100 });
        assert_eq!(tree.peek(&tokens(0, 100)), 100);
        let mut other = told.clone();
        other[130] = 9999;
        assert_eq!(tree.find(&other), Match { pages: vec![7, 8, 9], tokens: 130 });
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
        assert_eq!(tree.find(&right), Match { pages: vec![1, 4], tokens: 128 });
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
