//! What NVIDIA's libraries are called, by system and major version: asked for by whoever loads one,
//! and by the report of what there is, which therefore cannot say another thing.

/// A library with its names on Linux and on Windows, but for the version.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Names {
    pub name: &'static str,
    windows: &'static str,
    /// Major versions, newest first.
    versions: &'static [u32],
}

/// Compiles kernels at run time.
pub(crate) const NVRTC: Names =
    Names { name: "libnvrtc", windows: "nvrtc64", versions: &[13, 12, 11] };

/// Multiplies matrices.
pub(crate) const CUBLASLT: Names =
    Names { name: "libcublasLt", windows: "cublasLt64", versions: &[13, 12, 11] };

impl Names {
    /// What its file may be called on this system, the newest version first.
    pub fn files(&self) -> Vec<String> {
        if cfg!(windows) { self.files_of_windows() } else { self.files_of_unix() }
    }

    fn files_of_windows(&self) -> Vec<String> {
        let file = |version: &u32| match version {
            11 if self.name == NVRTC.name => format!("{}_112_0.dll", self.windows),
            _ if self.name == NVRTC.name => format!("{}_{version}0_0.dll", self.windows),
            _ => format!("{}_{version}.dll", self.windows),
        };
        self.versions.iter().map(file).collect()
    }

    fn files_of_unix(&self) -> Vec<String> {
        let files = self.versions.iter().flat_map(|version| {
            // Of 11 some carry the minor version.
            let minor = (*version == 11).then(|| format!("{}.so.11.2", self.name));
            [Some(format!("{}.so.{version}", self.name)), minor].into_iter().flatten()
        });
        // What comes with the headers.
        files.chain([format!("{}.so", self.name)]).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::{CUBLASLT, NVRTC};

    #[test]
    fn every_version_is_asked_for_newest_first() {
        let files = ["libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so.11"];
        let more = ["libcublasLt.so.11.2", "libcublasLt.so"];
        assert_eq!(CUBLASLT.files_of_unix(), [&files[..], &more].concat());
        let files = ["cublasLt64_13.dll", "cublasLt64_12.dll", "cublasLt64_11.dll"];
        assert_eq!(CUBLASLT.files_of_windows(), files);
        let files = ["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so.11"];
        let more = ["libnvrtc.so.11.2", "libnvrtc.so"];
        assert_eq!(NVRTC.files_of_unix(), [&files[..], &more].concat());
        let files = ["nvrtc64_130_0.dll", "nvrtc64_120_0.dll", "nvrtc64_112_0.dll"];
        assert_eq!(NVRTC.files_of_windows(), files);
        for names in [CUBLASLT, NVRTC] {
            let of_system = [names.files_of_unix(), names.files_of_windows()];
            assert_eq!(names.files(), of_system[usize::from(cfg!(windows))]);
        }
    }
}
