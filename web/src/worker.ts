// The Dedicated Worker: the engine and all storage. The page only draws.

import { loadEngine } from "./worker/engine";
import { serve } from "./worker/serve";

serve(loadEngine);
