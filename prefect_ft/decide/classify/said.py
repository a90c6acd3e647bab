"""What a text says of the kind of a failure, in whichever library's words.

Owns the words of each class: what fails and how it fails, near each other. Looks at one text only; whether it matters
is `kinds`' and `closing`'s business.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from prefect_ft.model import FailureClass
from prefect_ft.signatures import compiled

__all__ = ["first", "said_by", "said_of_exception"]

Words = tuple[tuple[FailureClass, str], ...]

_SAMPLE = (
    r"(?:jpe?gs?|pngs?|gif|bmp|tiff?|webp|images?|pictures?|audio|wav|mp3|flac|videos?|mp4|frames?|parquet|csv|jsonl?|"
    r"tf_?records?|records?|samples?|shards?|archives?|tar(?:ball)?|zip|gzip|data ?sets?|npz|npy|hdf5|arrow|lmdb|"
    r"annotations?|captions?|tokens?|vocab(?:ulary)?|corpus|training (?:data|examples?)|data files?)\b"
)
_STATE = (
    r"(?:check_?points?|ckpts?|weights?(?: files?)?|(?:pre-?trained )?model(?: files?| format)?|snapshots?|state[_ ]?dict|"
    r"optimizer states?|safetensors|\.pth?|sstable)\b"
)
_BROKEN = r"(?:corrupt(?:ed|ion)?|truncated|damaged|malformed|unreadable|incomplete|broken|bad magic|wrong magic)"
_TOOL = (
    r"\b(?:ptxas|nvcc|nvlink|nvrtc|cicc|hipcc|hiprtc|comgr|gcc|g\+\+|clang\+*|cc1(?:plus)?|ninja|cmake|bisheng|ccec|tbe|"
    r"llc|lld|ld|collect2|neuronx?-cc|neuron compiler|xla compiler|icpx?|ocloc|iree-compile|tvmc|MSBuild)\b"
)
_DEVICE = (
    r"(?:gpus?|npus?|hpus?|xpus?|tpus?|cuda|hip|rocm|device|accelerators?|hbm|vram|video|video memory|graphics|"
    r"neuron ?cores?|dcu|mlu|ipu|gcu)"
)
_CHIP = (
    r"(?:gpus?|npus?|hpus?|xpus?|tpus?|dcu|mlu|chips?|accelerators?|boards?|cards?|nvlink|nvswitch|hbm|dram|sram|dimm|"
    r"pcie?|ecc|neuron ?cores?|devices?|nics?|hca)"
)

_HARDWARE = (
    r"(?i)\buncorrect(?:ed|able)\b.{0,40}\b(?:ecc|errors?|memory|dram|sram|hbm|nvlink)|\bdouble[- ]bit\b|"
    r"\bfall(?:en|s)? off the bus|\b(?:hard|fatal)ware (?:errors?|failures?|faults?|defects?)\b|\bhardware (?:is )?(?:err|fail|fault)|"
    rf"\b{_CHIP}\b.{{0,40}}\b(?:is|was|has been|got)? ?(?:lost|hung|unhealthy|unresponsive|not responding|wedged|dead|defective|"
    r"overheat(?:ed|ing))\b|"
    rf"\b(?:lost|hung|faulty|bad|defective|dead|unhealthy) (?:the )?{_CHIP}\b|\b{_CHIP} (?:hang|reset failed|failure)\b|"
    r"\bmachine check (?:exception|error)|\bnode (?:has )?(?:fail(?:ure|ed)|died|crashed|is down|is dead|went down|not ?ready)\b|"
    r"\bhost (?:error|failure|died|crashed)\b|"
    r"\bdevice (?:heartbeat|health).{0,20}(?:lost|fail|compromised)|\bcritical temperature|\blink training failed|"
    r"\bmedium error\b|\bcontroller is down\b|\bkernel panic\b|\bparity error\b"
)
_OOM_HOST = (
    r"(?i)\boom[-_ ]?kill(?:ed|er)?\b|\bout of memory: kill|\bkilled process \d+|\bmemory cgroup out of memory|"
    r"\b(?:exceed(?:ed|s|ing)?|over|gone over|reach(?:ed|ing))\b.{0,40}\b(?:mem(?:ory)?|rss|vmem)\b.{0,30}\b(?:limit|quota|usage|killed)|"
    r"\bkilled\b.{0,50}\b(?:out of|running low on|using too much|exceeded|low on) ?memory|"
    r"\b(?:low on|ran out of) (?:resource: )?(?:host |system |main )?(?:memory|ram)\b|\bhost (?:memory|ram) (?:is )?(?:full|exhausted)|"
    r"\bmem \w+ exceeded limit|\bmemory limit .{0,40}(?:exceeded|killed)"
)
_OOM_DEVICE = (
    rf"(?i)out of (?:{_DEVICE} )(?:memory|resources)|\b{_DEVICE}\b.{{0,60}}\b(?:out of memory|oom\b|memory.{{0,20}}(?:exhausted|not enough|"
    r"isn't enough|insufficient))|"
    rf"\b(?:out of memory|oom|(?:not enough|insufficient|no (?:more|free|available)) memory|memory exhausted)\b.{{0,80}}\b{_DEVICE}\b|"
    rf"\b(?:fail(?:ed|ure)?|unable|could not|couldn't|cannot|can't)\b.{{0,20}}\balloc(?:at\w*)?\b.{{0,80}}\b{_DEVICE}\b|"
    rf"\b{_DEVICE}\b.{{0,60}}\b(?:alloc\w*|malloc\w*)\b.{{0,40}}\b(?:fail|error|exhaust)|"
    r"\b(?:resource_?exhausted|resource exhausted)\b.{0,60}\b(?:oom|out of memory|alloc\w*|hbm|memory|tensor)|\bOOM when allocating|"
    r"OUT_OF_DEVICE_MEMORY|ErrorOutOfMemory|OUT_OF_MEMORY|cuda(?:_error)?_?(?:out_?of_?memory|memory_?allocation)|"
    r"(?:CUBLAS|CUDNN|CUSOLVER|CUSPARSE)_STATUS_ALLOC_FAILED|\bDEVMEM\b.{0,40}fail|"
    rf"\bmemory allocation (?:failed|failure|error)\b.{{0,40}}\b{_DEVICE}\b|\bexceeds? (?:free|available|the) {_DEVICE} memory"
)
_STORAGE = (
    r"(?i)no space left on|\b(?:disk|file ?system|volume|partition|device|object store|/tmp|/dev/shm|storage|scratch)\b.{0,40}\b(?:is|are|was)? ?(?:full\b|"
    r"out of (?:space|inodes))|\b(?:disk|space|storage|inode|file|block|user|group) ?(?:usage )?quota\b.{0,30}(?:exceed|reach|exhaust|limit)|"
    r"\bexceed\w*.{0,20}\b(?:disk|storage|space|inode)\b.{0,12}\b(?:quota|limit|space)|\bread-only file ?system|\bremounting filesystem|"
    r"\bstale (?:nfs )?file handle|\binput/output error\b|\b(?:not enough|insufficient|no (?:more|free|available)|ran out of|out of) (?:free )?(?:disk|storage|scratch)(?: space)?\b|"
    r"\b(?:disk|i/o|io|write|read) (?:error|failure) (?:on|while (?:writ|read)|writing|reading)\b|\bfile (?:write|read) failed|\bfailed (?:to )?writ(?:e|ing) (?:to )?(?:file|disk|data|chunk|block)|"
    r"\btransport endpoint is not connected|\b(?:nfs|lustre|gpfs|mmfs|beegfs|ceph|ext4|xfs|btrfs|zfs|weka|s3fs|fuse)\b.{0,60}\b(?:error|fail(?:ed|ure)?|not responding|timed out|unmounted|"
    r"corruption|evicted|shutting down|blocklisted|aborted|inactive)\b|\b(?:could not|unable to|failed to) (?:un)?lock file\b|\bcannot send after transport endpoint shutdown|\bfile size limit exceeded|"
    r"\brequested and \d+ written"
)
_PORT = (
    r"(?i)\b(?:address|port|socket|endpoint)\b.{0,40}\b(?:already|currently) (?:in use|used|allocated|taken|bound|running|occupied)|\balready listening|\bEADDRINUSE\b|"
    r"\b(?:bind|listen)\w*\b.{0,40}\b(?:fail|error|refus)\w*|\b(?:fail(?:ed)?|unable|could not|cannot|can't|error)\b.{0,24}\b(?:bind|listen|bound)\w*\b|\bis already in use by another process|"
    r"\banother process is (?:using|utilizing|listening)|\bport \d+ is (?:in use|busy|occupied|not available)"
)
_PEER = (
    r"(?:connect(?:ion|ing|ed)?|connexion|sockets?|peers?|remote|servers?|endpoints?|channels?|hosts?|hostname|daemons?|gcs|store|rpc|grpc|http|https|url|"
    r"dns|tls|ssl|handshake|rendezvous|coordinator|transport|completion|network|ethernet|interface|link|cqe|qp|rdma|infiniband|roce|"
    r"p2p|bootstrap|broker|mysql|postgres|redis|mongo|database|registry|proxy|request|download|upload|api)"
)
_NETWORK = (
    r"(?i)\bconnect(?:ion|ing|ed)? (?:to \S+ )?(?:was |is |has been |unexpectedly |forcibly )*(?:refused|reset|closed|timed ?out|aborted|lost|broken|dropped|terminated|failed|error|failure)|"
    r"\bnetwork (?:is )?(?:unreachable|down|error|failure|issue|timeout)|\bno route to host|\bbroken (?:pipe|channel)|\bhost (?:is )?(?:unreachable|down|not found)|"
    r"\b(?:fail(?:ed|ure)?|unable|could ?n[o']t|cannot|can't|not able|error|lost)\b.{0,24}\b(?:connect(?:ion)?|reach|resolve|communicat\w+|contact|handshake|rendezvous)\b|"
    r"\b(?:name resolution|resolve host|name or service not known|getaddrinfo|unknown (?:\w+ )?(?:server )?host|nodename nor servname)\b|"
    rf"\b{_PEER}\b.{{0,40}}\b(?:timed ?-?out|timeout|unreachable|unavailable|not (?:available|responding|reachable)|retry count exceeded|retries exceeded|hung up|went away|gone away|"
    r"is down|link down|bad gateway|temporar(?:y|ily) (?:failure|unavailable))|"
    r"\b(?:timed ?-?out|timeout)\b.{0,40}\b(?:connect\w*|waiting for .{0,30}(?:peer|workers?|hosts?|nodes?|servers?|clients?|tasks?|ranks?|store|key)|rendezvous|handshake|request|download)\b|"
    r"\bsocket (?:closed|error|timeout|hang up|exception)|\bUNAVAILABLE\b|\bDEADLINE_?EXCEEDED\b|\b(?:service|server|backend) (?:is )?(?:temporarily )?(?:unavailable|not available|overloaded)|"
    r"\binternal server error|\bbad gateway|\bgateway time-?out|\btoo ?many ?requests|\brate limit|\bretry attempts failed|\bmax(?:imum)? (?:number of )?retries exceeded|\bincomplete ?read|\bremote end closed|"
    r"\btransport (?:error|retry)|\bunexpected eof (?:from|while reading from) (?:peer|server|socket)|\bpeer (?:closed|disconnected|reset|lost)|\bcertificate (?:has expired|verify failed)|\bport (?:error|down)\b"
)
_COMPILE = (
    rf"(?i){_TOOL}.{{0,40}}(?:not found|no such file|fail|return(?:ed|s) |exited|error|fatal|aborted|crashed|terminated)|"
    rf"(?:not find|missing|fail(?:ed|ure)?).{{0,20}}{_TOOL}|"
    r"\bfail(?:ed|ure|s|ing)?\b.{0,24}\b(?:compil\w+|to lower\b|codegen|code generation|to legali[sz]e|to (?:build|generate) (?:the )?(?:kernels?|code objects?|executables?|extensions?|program))|"
    r"\b(?:jit |just-in-time |kernel |operator |op |graph |shader |module |code object |backend |extension |program |xla |triton |template )?(?:compil(?:e|ation|er|ing)|code object build|codegen|lowering|module build|program build|kernel build|link(?:ing|er)?) "
    r"(?:has |step |process )?(?:fail\w*|error|crash\w*|abort\w*|terminated)|\bcompil\w+ .{0,60}(?:fail(?:ed|ure)?|error|crashed)\b|\bCompiler?Failed|\bcompilation terminated|\berror (?:building|compiling|lowering|legali[sz]ing)\b|"
    r"\bLLVM ERROR\b|\bcannot select: |\bMLIR\b.{0,60}(?:error|fail)|\bHLO\b.{0,60}\b(?:error|fail|mismatch|invalid|pass(?:es)?|verifier)|\bundefined reference to\b|\bgraph break\b|"
    r"\.(?:c|cc|cpp|cxx|cu|hip|h|hpp|cuh|cl|f90|ll|mlir|ptx|s)(?::\d+|\(\d+\))(?::\d+)?:? *(?:fatal )?error\b|\bsubcommand failed|\bmake(?:\[\d+\])?: \*\*\*|"
    r"\b(?:unsupported|no supported|unregistered|not supported) (?:op(?:type|erator|s)?|kernel|hlo|dialect)\b|\bptx\b.{0,40}(?:error|invalid|fail)|\bregister allocation fail|\bunsupported gpu architecture|\bcould not find any implementation for node|"
    r"\bmodule_build_failure|\b(?:parser|lowering|kernel) is (?:not )?registered"
)
_CANCELLED = (
    r"(?i)\b(?:job|run|task|step|training|process|execution|program|allocation|session|workflow|trial)\b.{0,40}\b(?:was |is |been |being )?(?:cancel(?:l?ed|ing)|aborted by|stopped by user|interrupted by|killed by (?:the )?(?:user|owner|admin|operator)|"
    r"deleted (?:at|by)|revoked)|\b(?:wall ?-?(?:time|clock)|run[- ]?time|time|cpu time)\b.{0,24}\b(?:limit|exceeded|expired|exhausted)|\bexceed\w*.{0,30}\b(?:wall ?(?:time|clock)|time limit|max(?:imum)? ?run ?time|deadline)|"
    r"\b(?:keyboard ?interrupt|SIGINT|ctrl-?c)\b|\bactive longer than|\bMaxRuntimeExceeded|\binterrupted by user"
)
_PREEMPTED = (
    r"(?i)\bpre-?empt(?:ed|ion|ing|s)?\b|\bevict(?:ed|ion|ing)\b|\bspot (?:instance|interruption|termination|reclaim)|\b(?:maintenance event|host maintenance|node drain|node shutdown|instance (?:is )?(?:going away|reclaimed|terminat(?:ed|ion)))|"
    r"\b(?:machine|node|instance|host|system) (?:is )?(?:being |will be |about to be |going to be )?(?:reclaimed|shut ?down|taken away|going down)|\btermination (?:is )?imminent|\bunhealthy_maintenance"
)
_NUMERIC = (
    r"(?i)\b(?:loss|gradients?|grad(?: |_)?norm|activations?|logits?|weights?|outputs?|inputs?|values?|rewards?|params?|parameters?|tensors?|result|returned|contains?|found|detected|encountered|got|is|are|was|became|to|be)\b.{0,12}\b(?:nan|-?inf(?:inite|inity)?|non-?finite|not finite)\b|"
    r"\b(?:nan|-?inf(?:inite|inity)?|non-?finite)\b.{0,24}\b(?:loss|gradients?|grad|values?|detected|found|encountered|in (?:loss|output|input|tensor|parameter|forward|backward)|check)\b|"
    r"\bmodel diverged|\b(?:loss|training|optimi[sz]ation|solver) (?:has )?(?:diverg\w+|exploded|blew up)|\bloss scal\w* .{0,40}(?:minimum|too (?:low|small)|underflow)|\binvalid loss\b|\bnumeric(?:al)? (?:error|instability|overflow)|\bmath range error|\bfloating[- ]point exception"
)
_CHECKPOINT = (
    rf"(?i)\b{_BROKEN}\b.{{0,40}}\b{_STATE}|{_STATE}.{{0,60}}\b(?:(?:is|are|was|seems?|appears?|may be|might be) )?(?:to be )?{_BROKEN}\b|"
    rf"\b(?:not|unable to|could not|cannot|can't|fail(?:ed|ure)?(?: to)?|error(?: while| in| when)?) (?:re)?(?:load|read|restor|pars|deseriali[sz]|open|decod)\w* .{{0,40}}{_STATE}|"
    rf"{_STATE}.{{0,40}}\b(?:not a valid|is not a|is not valid|invalid|unrecogni[sz]ed|can(?:not|'t) be (?:read|loaded|restored)|checksum|failed to (?:load|restore))|"
    rf"\b(?:unknown|invalid|wrong|unexpected) {_STATE}.{{0,40}}\b(?:format|type|header|magic)|\bpytorchstreamreader failed|\binvalid load key|\bDATA_?LOSS\b|\bdata loss: |\binvalid magic number|\bfinding central directory|\bdeserializing header|"
    r"\btruncated file: eof|\bfile signature not found"
)
_DATA = (
    rf"(?i)\b(?:invalid|{_BROKEN}|bad|empty|zero-length)\b.{{0,24}}\b{_SAMPLE}|"
    rf"\b(?:not|unable to|could not|cannot|can't|fail(?:ed|ure)? (?:to|while|in)|error(?: while| in| when)?) (?:decod|identify|pars|read|load|open|decompress|tokeni[sz]|unpack)\w* .{{0,32}}\b{_SAMPLE}|"
    rf"\b{_SAMPLE}.{{0,24}} (?:is|are|was) (?:not a (?:valid )?{_SAMPLE}|{_BROKEN}|invalid|empty)|\bis not a {_SAMPLE}|"
    rf"\b(?:checksum|crc|hash)\b.{{0,24}}\b(?:mismatch|fail\w*|error|wrong)|\b(?:mismatch\w*|wrong|bad|invalid) (?:checksum|crc)\b|\bdata ?(?:reader|loader|loading|set)\b.{{0,40}}\b(?:raise[sd]?|exception|fail\w*|crash\w*|died|caught)\b|\bno (?:samples|images|data|examples|records|files) (?:were |was )?found\b|"
    r"\bnum_samples=0|\b(?:label|target|class|token) (?:index |id )?\d* ?(?:is )?out of (?:bounds|range)|\bunexpected end of (?:data|file|stream|input)|\binvalid (?:utf-?8|byte sequence|start byte|continuation byte)|\bpremature end of\b|\bdid not match any variant|\bunsupported marker type"
)
_SETUP = (
    r"(?i)\bversion mismatch|\bversions? .{0,60}(?:mismatch\w*|incompatible|too old|not supported|insufficient)|mismatch(?:ed|es)? .{0,40}\bversions?|incompatible (?:versions?|driver|librar|with)|\b(?:is|are) not installed|(?:pip|please|conda|apt(?:-get)?) install |"
    r"\b(?:requires?|needs?) .{0,40}\b(?:version|>=|driver|install|newer|at least|or newer|or higher|or later|gpus? or)|\benvironment variable\b|\bnot compiled with\b|\b(?:driver|runtime|toolkit) (?:version )?is (?:insufficient|too old|older)|"
    r"\bcannot open shared object file|\bundefined symbol\b|\bimage not found\b|\bcommand not found|\bexecutable file not found|\b(?:unrecogni[sz]ed|unknown|unexpected|ambiguous|no such) (?:command[- ]line )?arguments?|\b(?:unrecogni[sz]ed|unknown|invalid|unexpected|ambiguous|no such) (?:command[- ]line )?(?:options?|flags?|config(?:uration)? (?:key|option|value)|sub-?commands?|parameter(?:s)?\b.{0,20}config)|"
    r"\bno such (?:file|directory|module|option|host key)|\b(?:not|no) (?:a )?(?:directory|permission)\b|\bpermission denied|\bno permission\b|\baccess (?:is )?denied|\bunauthori[sz]ed|\bforbidden\b|\bauthenticat\w+ (?:failed|failure|error|required)|\binvalid (?:api key|credentials?|token|username|password|licen[cs]e|device (?:id|ordinal))|"
    r"\b(?:licen[cs]e|credentials?|token)\b.{0,30}\b(?:expired|missing|not found|invalid|required|could not be)|\b(?:file|path|directory|folder|module|package|library|bucket|repository|key|configmap|secret|image|variable|dataset|object|resource|config(?:uration)?)\b.{0,120}\b(?:not found|does ?n[o']t exist|is missing|could not be found|cannot be found)|"
    r"\b(?:could not|cannot|can't|unable to|failed to) (?:find|locate|import|open) (?:the )?(?:file|path|directory|module|package|library|image|config)|\btoo many open files|\bno (?:such device|visible|cuda|gpu|rocm|available)?.{0,12}\b(?:gpus?|devices?|backends?)\b.{0,24}\b(?:available|found|detected|visible)|"
    r"\b(?:must|should|has to|have to|needs to) be (?:divisible|a (?:positive|multiple)|one of|set|specified|greater|less|at least|given|passed|between|the same)\b|\bnot divisible by\b|\bnot enough (?:slots|gpus|nodes|processes)\b|\bnot supported (?:on|by|for) (?:this|your)|\bonly supports? |\bno module named\b|\bunsupported (?:gpu|device|hardware|platform|compute capability)|"
    r"\bno kernel image|\b(?:cuda|rocm|driver|environment) set-?up failed|\bcheckpoint\b.{0,80}\bbut (?:the )?(?:current|model|this)\b|\b(?:world|parallel) size\b.{0,60}\b(?:differs?|mismatch|but|does not match)\b|\binvalid (?:config|argument|value) (?:for|in|of)\b|\bvalue .{1,40} (?:is invalid|is not valid|not allowed)|\bmisconfigur|\bbuild .{0,20}from source\b"
)
_CRASH = (
    r"(?i)\bsegmentation (?:fault|violation)|\bSIG(?:SEGV|BUS|ILL|FPE|ABRT)\b|\bcore dumped\b|\bbus error\b|\billegal instruction|\bstack smashing|\bgeneral protection fault|\bdouble free|\bheap corruption|\baborted \(|\baccess violation|\billegal memory access|\bmemory access fault|\bpanicked at\b|\bpanic: |"
    r"\bfatal error: unexpected signal|\bmalloc\(\)|\bfree\(\): |\bmunmap_chunk|\binvalid pointer\b|\bunhandled exception\b|\bpure virtual method"
)
_USER = (
    r"(?i)\b(?:shapes?|sizes?|dimensions?|dtypes?|ranks? of|dims?)\b.{0,60}\b(?:mismatch\w*|incompatible|do(?:es)? not match|don't match|must match|cannot be|not (?:compatible|aligned|equal)|expected)|\b(?:mismatch\w*|incompatible|inconsistent|expected) (?:\w+ )?(?:shapes?|sizes?|dimensions?|dtypes?|types?)\b|\bindex out of (?:range|bounds)|\bundefined (?:variable|function|name)\b|"
    r"\bnot (?:yet )?implemented\b|\bdivision by zero|\bcannot (?:convert|cast)\b|\bhas no attribute\b|\bgot an unexpected keyword|\bmissing \d+ required positional"
)
_ASSERTION = r"(?i)\bassert(?:ion)?\b.{0,200}\bfailed\b|\bassertion (?:failed|failure|error)|\bcheck failed: |\binternal assert"

_LINE: Words = (
    ("oom_host", _OOM_HOST),
    ("preempted", _PREEMPTED),
    ("hardware", _HARDWARE),
    ("storage", _STORAGE),
    ("port_in_use", _PORT),
    ("compile", _COMPILE),
    ("oom_device", _OOM_DEVICE),
    ("numeric", _NUMERIC),
    ("cancelled", _CANCELLED),
    ("checkpoint", _CHECKPOINT),
    ("network", _NETWORK),
    ("config", _SETUP),
    ("data", _DATA),
    ("assertion", _ASSERTION),
    ("user_code", _USER),
    ("crash", _CRASH),
)
"""What a line says, what is said in few other words first."""

_OF_EXCEPTIONS = frozenset(("oom_device", "compile", "data", "config", "storage", "port_in_use", "network", "numeric", "checkpoint", "hardware"))


def said_by(text: str) -> FailureClass | None:
    """Return what a line that complains says of the kind of failure."""
    return first(_LINE, text)


def said_of_exception(message: str) -> FailureClass | None:
    """Return what the message of an exception says, of the classes that a program may tell by one.

    What is said of shapes and types is of the program's own values, whatever else is said.
    """
    return None if _pattern(_USER).search(message) is not None else first(_RAISED, message)


_RAISED: Words = tuple((each, words) for each, words in _LINE if each in _OF_EXCEPTIONS)


def first(table: Words, text: str) -> FailureClass | None:
    """Return the first class of a table whose pattern is in a text."""
    return next((each for each, pattern in table if _pattern(pattern).search(text) is not None), None)


@cache
def _pattern(pattern: str) -> Any:
    return compiled(pattern)
