//! Detects the instruction sets with which forests can be evaluated.

use std::fmt;

/// An instruction set for which there are kernels. The results of all kernels have the same bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Isa {
    /// The instructions that the compiler's target guarantees.
    Portable,
    /// NEON, which every AArch64 has.
    Neon,
    /// x86-64 with AVX2 and BMI.
    Avx2,
    /// x86-64 with AVX-512 F, BW, DQ, VL and VBMI: Ice Lake, Zen 4 and later.
    Avx512,
}

impl Isa {
    /// All instruction sets in the order of preference, the best last.
    pub const ALL: [Self; 4] = [Self::Portable, Self::Neon, Self::Avx2, Self::Avx512];

    /// Whether this machine has the instruction set.
    #[must_use]
    pub fn is_available(self) -> bool {
        match self {
            Self::Portable => true,
            Self::Neon => cfg!(target_arch = "aarch64"),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => {
                is_x86_feature_detected!("avx2")
                    && is_x86_feature_detected!("bmi1")
                    && is_x86_feature_detected!("bmi2")
                    && is_x86_feature_detected!("popcnt")
            }
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => {
                Self::Avx2.is_available()
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512vbmi")
            }
            #[cfg(not(target_arch = "x86_64"))]
            Self::Avx2 | Self::Avx512 => false,
        }
    }

    /// The instruction sets that this machine has, the best last.
    pub fn available() -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(|isa| isa.is_available())
    }

    /// The instruction set that forests use by default: the best that this machine has.
    #[must_use]
    pub fn best() -> Self {
        Self::available().last().unwrap_or(Self::Portable)
    }

    /// The name: `portable`, `neon`, `avx2` or `avx512`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Portable => "portable",
            Self::Neon => "neon",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
        }
    }
}

/// Proof that this machine has the instructions of [`Isa::Avx2`]. Only detection creates a value, so a function that
/// takes one may use the instructions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct HasAvx2(());

/// Proof that this machine has the instructions of [`Isa::Avx512`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HasAvx512(());

/// An instruction set that this machine has, with the proof.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Detected {
    Portable,
    Neon,
    Avx2(HasAvx2),
    Avx512(HasAvx512),
}

// === impl Detected ===

impl Detected {
    /// Detects an instruction set; `None` if this machine lacks it.
    pub(super) fn new(isa: Isa) -> Option<Self> {
        isa.is_available().then_some(match isa {
            Isa::Portable => Self::Portable,
            Isa::Neon => Self::Neon,
            Isa::Avx2 => Self::Avx2(HasAvx2(())),
            Isa::Avx512 => Self::Avx512(HasAvx512(())),
        })
    }

    /// The best instruction set of this machine.
    pub(super) fn best() -> Self {
        Self::new(Isa::best()).unwrap_or(Self::Portable)
    }

    pub(super) fn isa(self) -> Isa {
        match self {
            Self::Portable => Isa::Portable,
            Self::Neon => Isa::Neon,
            Self::Avx2(_) => Isa::Avx2,
            Self::Avx512(_) => Isa::Avx512,
        }
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
